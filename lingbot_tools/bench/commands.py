"""What the commands have in common: options, progress, and the way a report leaves."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click
from lingbot_client import WorldError
from lingbot_client.figures import plain
from lingbot_client.playing import progress_bar
from rich.console import Console, RenderableType
from rich.markup import escape

from lingbot_tools.bench.bars import Bar, bars_table
from lingbot_tools.bench.drive import FrameSize
from lingbot_tools.bench.machine import ran_on
from lingbot_triton.simulated.profiles import PROFILES
from lingbot_triton.triton.installation import InstallationError
from lingbot_triton.triton.server import ServerError

T = TypeVar("T")
Command = Callable[..., None]

FILE = click.Path(path_type=Path, dir_okay=False)
INTERRUPTED = 130
SIMULATED_SIZE = FrameSize(832, 480)
TINY_SIZE = FrameSize(96, 64)


def frame_size(text: str) -> FrameSize:
    """Read WIDTHxHEIGHT; click turns the ValueError into a usage error."""
    width, _, height = text.partition("x")
    if not (width.isdecimal() and height.isdecimal()):
        raise ValueError(f"{text!r} is not WIDTHxHEIGHT")
    return FrameSize(int(width), int(height))


def add(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one decorator, in the order given."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


profile_options = add(
    click.option("--profile", type=click.Choice(sorted(PROFILES)), default="seed-4xh100",
                 show_default=True, help="Costs of the simulated stages."),
    click.option("--scale", type=click.FloatRange(0), default=1.0, show_default=True,
                 help="Factor on the profile's costs."),
)  # fmt: skip
report_options = add(
    click.option("--json", "json_path", type=FILE, help="Report to write, as JSON."),
    click.option("--enforce", is_flag=True, help="Exit with 1 when a bar is missed."),
)
url_option = click.option(
    "--url", help="gRPC address of a running server, instead of starting one."
)


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """A bar on stderr; call what it gives for each chunk, with what is going on."""
    with progress_bar() as bar:
        task = bar.add_task("starting", total=total)
        yield lambda text: bar.update(task, advance=1, description=text)


@contextmanager
def one_line_errors(*more: type[Exception]) -> Iterator[None]:
    """What goes wrong with the server becomes one line and exit code 1, Ctrl-C exit code 130."""
    known: tuple[type[Exception], ...] = (WorldError, ServerError, InstallationError, OSError)
    known += more
    try:
        yield
    except known as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        click.echo("interrupted; the server is stopped", err=True)
        sys.exit(INTERRUPTED)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def finish(
    kind: str,
    about: dict[str, Any],
    tables: Sequence[RenderableType],
    bars: Sequence[Bar],
    details: dict[str, Any],
    *,
    errors: Sequence[str],
    json_path: Path | None,
    enforce: bool,
) -> None:
    """Print a report and write it; `about` says what is simulated and what was left out."""
    machine = ran_on()
    console = Console(width=None if sys.stdout.isatty() else 140)
    for table in tables:
        console.print(table)
    console.print(bars_table(bars))
    cpu = f"{machine['cpu']}, {machine['cores']} cores, load {machine['load_average']}"
    if machine["priority"] != "niceness 0":
        cpu += f", priority: {machine['priority']}"
    console.print(
        f"ran on: {cpu}; {machine['system']}; Python {machine['python']}", highlight=False
    )
    packages = (f"{name} {version}" for name, version in machine["packages"].items())
    console.print(f"versions: {', '.join(packages)}", highlight=False)
    for error in errors:
        console.print(f"[red]error:[/] {escape(error)}", highlight=False)
    for name, text in about.items():
        console.print(f"{name.replace('_', ' ')}: {text}", highlight=False)
    if json_path is not None:
        report = {
            "kind": kind,
            "ran_on": machine,
            "about": about,
            "errors": list(errors),
            "bars": [bar.to_json() for bar in bars],
            **details,
        }
        json_path.write_text(json.dumps(plain(report), indent=1) + "\n")
    if enforce and not all(bar.met for bar in bars):
        sys.exit(1)


def noted(bars: Sequence[Bar], *, stated: bool) -> list[Bar]:
    """The same bars; where they are not stated for what was measured, their notes say so.

    That nothing fails, a bar of 0, is stated for everything.
    """
    note = "" if stated else "; stated for the profile at scale 1 only"
    return [
        replace(bar, note=f"{bar.note}{note}".removeprefix("; ")) if bar.bar else bar
        for bar in bars
    ]
