"""Reports: what was promised beside what was measured, what was simulated, and what it ran on."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click
from lingbot_client.figures import plain
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Column, Table

PACKAGES = ("numpy", "grpcio", "tritonclient", "torch", "nvidia-pytriton", "lingbot-triton")


@dataclass(frozen=True)
class Bar:
    """A promise about one number. A number that could not be measured misses it."""

    text: str
    value: float
    bar: float
    at_least: bool = False
    unit: str = ""
    note: str = ""

    @property
    def met(self) -> bool:
        return self.value >= self.bar if self.at_least else self.value <= self.bar


@dataclass(frozen=True)
class Report:
    """What a command measured; `about` says what was simulated and what was left out."""

    kind: str
    about: dict[str, Any]
    tables: Sequence[RenderableType]
    bars: Sequence[Bar]
    details: dict[str, Any]
    errors: Sequence[str] = ()

    def finish(self, json_path: Path | None, *, enforce: bool) -> None:
        """Print the report, write it, and exit with 1 if `enforce` and a bar is missed."""
        console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
        console.print(*self.tables, bars_table(self.bars), sep="\n")
        for error in self.errors:
            console.print(f"[red]error:[/] {escape(error)}")
        about = ran_on() | self.about
        for name, words in about.items():
            console.print(f"{name.replace('_', ' ')}: {escape(str(words))}")
        if json_path is not None:
            bars = [asdict(bar) | {"met": bar.met} for bar in self.bars]
            head = {"kind": self.kind, "about": about, "errors": list(self.errors)}
            document = {**head, "bars": bars, **self.details}
            json_path.write_text(json.dumps(plain(document), indent=1) + "\n")
        if enforce and not all(bar.met for bar in self.bars):
            raise click.exceptions.Exit(1)


def new_table(title: str, words: Sequence[str], numbers: Sequence[str]) -> Table:
    """A table without rows yet: columns of words, then columns of numbers."""
    right = (Column(name, justify="right") for name in numbers)
    return Table(*words, *right, title=title, title_justify="left")


def bars_table(bars: Sequence[Bar]) -> Table:
    """One row per bar, those met and those missed side by side."""
    result = new_table("bars", ["what"], ["measured", "bar"])
    result.add_column("")
    result.add_column("note")
    for bar in bars:
        limit = f"{'≥' if bar.at_least else '≤'} {bar.bar:g} {bar.unit}".strip()
        verdict = "[green]met[/]" if bar.met else "[red]missed[/]"
        result.add_row(bar.text, f"{bar.value:.3f} {bar.unit}".strip(), limit, verdict, bar.note)
    return result


def stated(bars: Sequence[Bar], applies: bool) -> list[Bar]:
    """The same bars; where they are not stated for what was measured, their notes say so.

    That nothing fails, a bar of 0, is stated for everything.
    """
    note = "" if applies else "; stated for the profile at scale 1 only"
    return [
        replace(bar, note=f"{bar.note}{note}".removeprefix("; ")) if bar.bar else bar
        for bar in bars
    ]


def ran_on() -> dict[str, str]:
    """The machine, its load at this moment, and the versions of what matters here."""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    # The server and its models inherit the priority of this process.
    policies = {os.SCHED_FIFO: "real time", os.SCHED_RR: "real time", os.SCHED_IDLE: "idle"}
    priority = policies.get(os.sched_getscheduler(0), f"niceness {os.nice(0)}")
    load = ", ".join(f"{load:.2f}" for load in os.getloadavg())
    packages = []
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            packages.append(f"{name} {version(name)}")
    return {
        "ran_on": f"{cpu[1] if cpu else platform.machine()}, {len(os.sched_getaffinity(0))} cores, "
        f"load {load}, priority: {priority}; {platform.system()} {platform.release()}; "
        f"Python {platform.python_version()}; {time.strftime('%Y-%m-%d %H:%M:%S %Z')}",
        "versions": ", ".join(packages),
    }
