"""NVIDIA's perf_analyzer against the orchestrator, at several numbers of live sequences."""

from __future__ import annotations

import csv
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from lingbot_tools.bench.hosting import Target
from lingbot_tools.bench.load_data import RESPONSES, count_responses, incomplete, read_export
from lingbot_triton import metrics
from lingbot_triton.protocol import ORCHESTRATOR, EndReason
from lingbot_triton.stage import STAGES
from lingbot_triton.triton.installation import perf_analyzer_environment
from lingbot_triton.triton.scrape import scrape, total

LEVEL_SECONDS = 900.0
SETTLE_SECONDS = 30.0


@dataclass(frozen=True)
class Level:
    """What one number of live sequences came to; the fields are those of the report."""

    concurrency: int
    perf_analyzer: dict[str, str]
    """Its own line of its CSV file; latencies are to the first response, in µs."""
    counters: dict[str, float]
    """By how much the server's counters rose."""
    answers: dict[str, int]
    """Responses by status, where they were looked at. Not all of them: perf_analyzer writes no more
    down once it has as many as asked for, while it still ends the sequences that it breaks off."""
    faults: list[str]

    def rise(self, metric: metrics.MetricSpec) -> float:
        return total(self.counters, metric.name)

    @property
    def first_frames_ms(self) -> float:
        """Mean time from acceptance to the first frames: the server's clock."""
        name = metrics.FIRST_FRAMES.name
        count = self.counters.get(f"{name}_count", 0)
        return self.counters[f"{name}_sum"] / count * 1000 if count else float("nan")


def find_faults(
    concurrency: int,
    counters: dict[str, float],
    open_sessions: float = 0,
    responses: Mapping[str, int] | None = None,
    incomplete: int = 0,
) -> list[str]:
    """Everything that is not as it should be; perf_analyzer counts our errors as successes."""
    opened, chunks, rejections = (
        total(counters, metric.name)
        for metric in (metrics.OPENED, metrics.CHUNKS, metrics.REJECTIONS)
    )
    closed = f'{metrics.CLOSED.name}{{{metrics.CLOSED.label}="{EndReason.END.value}"}}'
    bad_ends = opened - counters.get(closed, 0)
    family = metrics.REJECTIONS.name
    codes = (
        f"{name.removeprefix(family)} {rise:.0f}"
        for name, rise in counters.items()
        if name.startswith(family) and rise
    )
    bad = {status: n for status, n in (responses or {}).items() if status not in RESPONSES}
    faults = {
        f"{rejections:.0f} rejections: {', '.join(codes)}": rejections,
        f"{bad_ends:.0f} sessions more were opened than ended by END": bad_ends,
        f"{open_sessions:.0f} sessions are still there": open_sessions,
        "no chunk was made": not chunks,
        f"answers that are errors: {bad}": bad,
        f"{incomplete} controls without all parts of their chunk": incomplete,
    }
    return [f"concurrency {concurrency}: {fault}" for fault, happened in faults.items() if happened]


def perf_analyzer(url: str, folder: Path, concurrency: int, requests: int) -> list[str]:
    """The perf_analyzer call; README shows the same."""
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    binary = shutil.which("perf_analyzer", path=beside)
    if binary is None:
        raise click.ClickException("there is no perf_analyzer; run scripts/setup")
    return [
        binary,
        "-m", ORCHESTRATOR.name,
        "-u", url,
        "-i", "grpc", "--streaming", "--async",
        "--input-data", str(folder / "data.json"),
        "--concurrency-range", str(concurrency),
        "--request-count", str(requests),
        "--bls-composing-models", ",".join(spec.name for spec in STAGES),
        "-f", str(folder / "results.csv"),
    ]  # fmt: skip


def run_level(
    target: Target, folder: Path, concurrency: int, requests: int, check_responses: bool
) -> Level:
    """Run perf_analyzer once with `concurrency` live sequences, on the data in `folder`."""
    export = folder / "responses.json"
    call = perf_analyzer(target.grpc, folder, concurrency, requests)
    if check_responses:
        call += ["--profile-export-file", str(export)]
    before = scrape(target.metrics)
    _run(call)
    after = _settled(target.metrics)
    with (folder / "results.csv").open(newline="") as file:
        row = list(csv.DictReader(file))[-1]
    written = read_export(export) if check_responses else []
    export.unlink(missing_ok=True)  # perf_analyzer writes over no file
    rises = {name: value - before.get(name, 0.0) for name, value in after.items()}
    responses = count_responses(written)
    sessions = total(after, metrics.SESSIONS.name)
    faults = find_faults(concurrency, rises, sessions, responses, incomplete(written))
    counters = {name: rise for name, rise in rises.items() if "_bucket" not in name}
    return Level(concurrency, row, counters, dict(responses), faults)


def _run(call: Sequence[str]) -> None:
    environment = {**os.environ, **perf_analyzer_environment()}
    done = subprocess.run(
        call, env=environment, capture_output=True, text=True, timeout=LEVEL_SECONDS, check=False
    )
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        words = " / ".join(lines[:6])
        failure = f"perf_analyzer failed with {done.returncode}: {words}\n{shlex.join(call)}"
        raise click.ClickException(failure)


def _settled(address: str) -> dict[str, float]:
    """Counters once every session that was opened has ended, or after `SETTLE_SECONDS`."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        series = scrape(address)
        opened, closed = (total(series, spec.name) for spec in (metrics.OPENED, metrics.CLOSED))
        settled = opened <= closed and not total(series, metrics.SESSIONS.name)
        if settled or time.monotonic() > deadline:
            return series
        time.sleep(0.1)


def write_csv(path: Path, levels: Sequence[Level]) -> None:
    """Perf_analyzer's lines of all levels, as one file."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(levels[0].perf_analyzer))
        writer.writeheader()
        writer.writerows(level.perf_analyzer for level in levels)
