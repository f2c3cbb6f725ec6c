"""NVIDIA's perf_analyzer against the orchestrator, at several numbers of live sequences."""

from __future__ import annotations

import csv
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lingbot_tools.bench.drive import FrameSize
from lingbot_tools.bench.hosting import Target
from lingbot_tools.bench.load_data import (
    ANSWERS,
    count_answers,
    incomplete,
    input_data,
    read_export,
)
from lingbot_triton import metrics
from lingbot_triton.protocol import ORCHESTRATOR, EndReason
from lingbot_triton.stage import STAGES
from lingbot_triton.triton.installation import perf_analyzer_environment
from lingbot_triton.triton.scrape import scrape, total

LEVEL_SECONDS = 900.0
SETTLE_SECONDS = 30.0


class LoadError(RuntimeError):
    """perf_analyzer is missing or did not do its work; the message holds its own words."""


@dataclass(frozen=True)
class Level:
    """What one number of live sequences came to."""

    concurrency: int
    seconds: float
    row: dict[str, str]
    """perf_analyzer's own line of its CSV file; latencies are to the first response, in µs."""
    counters: dict[str, float]
    """By how much the server's counters rose."""
    open_sessions: float
    """Sessions that the server still had afterwards."""
    answers: Counter[str] = field(default_factory=Counter)
    """By status, where they were looked at. Not all of them: perf_analyzer writes no more down once
    it has as many as asked for, while it still ends the sequences that it breaks off."""
    incomplete: int = 0

    @property
    def chunks(self) -> float:
        return total(self.counters, metrics.CHUNKS.name)

    @property
    def sequences(self) -> float:
        return total(self.counters, metrics.OPENED.name)

    @property
    def rejections(self) -> float:
        return total(self.counters, metrics.REJECTIONS.name)

    @property
    def first_frames_ms(self) -> float:
        """Mean time from acceptance to the first frames: the server's clock."""
        name = metrics.FIRST_FRAMES.name
        count = self.counters.get(f"{name}_count", 0)
        return self.counters[f"{name}_sum"] / count * 1000 if count else float("nan")

    def faults(self) -> list[str]:
        """Everything that is not as it should be; perf_analyzer counts our errors as successes."""
        bad_ends = self.sequences - self.counters.get(_closed(EndReason.END), 0)
        bad_answers = {status: n for status, n in self.answers.items() if status not in ANSWERS}
        found = [
            (self.rejections, f"{self.rejections:.0f} rejections: {self._rejected()}"),
            (bad_ends, f"{bad_ends:.0f} sessions more were opened than ended by END"),
            (self.open_sessions, f"{self.open_sessions:.0f} sessions are still there"),
            (not self.chunks, "no chunk was made"),
            (bool(bad_answers), f"answers that are errors: {bad_answers}"),
            (self.incomplete, f"{self.incomplete} controls without all parts of their chunk"),
        ]
        return [f"concurrency {self.concurrency}: {text}" for fault, text in found if fault]

    def _rejected(self) -> str:
        family = metrics.REJECTIONS.name
        risen = {key: n for key, n in self.counters.items() if key.startswith(family) and n}
        return ", ".join(f"{key.removeprefix(family)} {n:.0f}" for key, n in risen.items())


def _closed(reason: EndReason) -> str:
    return f'{metrics.CLOSED.name}{{{metrics.CLOSED.label}="{reason.value}"}}'


def command(url: str, data: Path, concurrency: int, requests: int, results: Path) -> list[str]:
    """The perf_analyzer call; README shows the same."""
    beside = Path(sys.executable).with_name("perf_analyzer")
    binary = str(beside) if beside.exists() else shutil.which("perf_analyzer")
    if binary is None:
        raise LoadError("there is no perf_analyzer; run scripts/setup")
    return [
        binary,
        "-m", ORCHESTRATOR.name,
        "-u", url,
        "-i", "grpc", "--streaming", "--async",
        "--input-data", str(data),
        "--concurrency-range", str(concurrency),
        "--request-count", str(requests),
        "--bls-composing-models", ",".join(spec.name for spec in STAGES),
        "-f", str(results),
    ]  # fmt: skip


def run_level(
    target: Target, folder: Path, concurrency: int, requests: int, check_answers: bool
) -> Level:
    """Run perf_analyzer once with `concurrency` live sequences, on the data in `folder`."""
    results = folder / f"results-{concurrency}.csv"
    export = folder / f"answers-{concurrency}.json"
    call = command(target.grpc, folder / "data.json", concurrency, requests, results)
    if check_answers:
        call += ["--profile-export-file", str(export)]
    before, started = scrape(target.metrics), time.monotonic()
    _run(call)
    seconds = time.monotonic() - started
    after = _settled(target.metrics)
    made = read_export(export) if check_answers else []
    export.unlink(missing_ok=True)
    return Level(
        concurrency,
        seconds,
        _last_row(results),
        {name: value - before.get(name, 0.0) for name, value in after.items()},
        total(after, metrics.SESSIONS.name),
        count_answers(made),
        incomplete(made),
    )


def _run(call: Sequence[str]) -> None:
    environment = {**os.environ, **perf_analyzer_environment()}
    try:
        done = subprocess.run(
            call,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LEVEL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LoadError(f"not done after {LEVEL_SECONDS:.0f} s: {shlex.join(call)}") from None
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        words = " / ".join(lines[:6])
        raise LoadError(f"perf_analyzer failed with {done.returncode}: {words}\n{shlex.join(call)}")


def _settled(address: str) -> dict[str, float]:
    """Counters once every session that was opened has ended, or after `SETTLE_SECONDS`."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        found = scrape(address)
        opened, closed = (total(found, spec.name) for spec in (metrics.OPENED, metrics.CLOSED))
        settled = opened <= closed and not total(found, metrics.SESSIONS.name)
        if settled or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def _last_row(path: Path) -> dict[str, str]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))[-1]


def write_data(folder: Path, size: FrameSize) -> None:
    (folder / "data.json").write_text(json.dumps(input_data(size)))


def write_csv(path: Path, levels: Sequence[Level]) -> None:
    """Perf_analyzer's lines of all levels, as one file."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(levels[0].row))
        writer.writeheader()
        writer.writerows(level.row for level in levels)
