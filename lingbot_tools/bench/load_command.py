"""`scripts/load-test`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from subprocess import TimeoutExpired

import click
from rich.table import Table

from lingbot_tools.bench import commands, load
from lingbot_tools.bench.drive import FrameSize
from lingbot_tools.bench.hosting import Stages, serving
from lingbot_tools.bench.load_data import input_data
from lingbot_tools.bench.report import Bar, Report, new_table
from lingbot_triton import metrics

CHECKED_SIZE = FrameSize(32, 16)
"""Frames small enough for perf_analyzer to write all of them down as text."""


def numbers(text: str) -> tuple[int, ...]:
    """Read whole numbers above 0, with commas between them."""
    values = tuple(int(part) for part in text.split(","))
    if min(values) < 1:
        raise ValueError(f"{text!r} has a number below 1")
    return values


@click.command("load-test")
@commands.simulation(scale=0.05)
@commands.checkpoint
@click.option(
    "--concurrency",
    "concurrencies",
    type=numbers,
    default="1,4,8",
    help="Live sequences, one run of perf_analyzer each.",
)
@commands.count("--requests", 200, "Requests of each run.")
@commands.size("Frames [832x480, 96x64 if computed, 32x16 with --check-answers].")
@click.option(
    "--check-answers",
    is_flag=True,
    help="Look at every answer too, not only at the server's counters.",
)
@click.option("--url", help="gRPC address of a running server; needs --metrics-url.")
@click.option("--metrics-url", help="host:port of the running server's metrics.")
@click.option("--csv", "csv_path", type=commands.FILE, help="perf_analyzer's results to write.")
@commands.json_report
def command(
    profile: str, scale: float, checkpoint: str | None, concurrencies: tuple[int, ...],
    requests: int, size: FrameSize | None, check_answers: bool, url: str | None,
    metrics_url: str | None, csv_path: Path | None, json_path: Path | None,
) -> None:  # fmt: skip
    """NVIDIA's perf_analyzer plays whole sessions; exits with 1 on any error or rejection."""
    if url and not metrics_url:
        raise click.UsageError("--url needs --metrics-url: errors only show in the counters")
    if size is None:
        size = commands.TINY_SIZE if checkpoint else commands.FULL_SIZE
        size = CHECKED_SIZE if check_answers else size
    stages = Stages(profile, scale, checkpoint)
    levels = []
    with (
        commands.one_line_errors(TimeoutExpired),
        commands.progress(len(concurrencies)) as advance,
        tempfile.TemporaryDirectory(prefix="lingbot-load-") as name,
        serving(url, stages.environment(max_sessions=max(8, *concurrencies))) as target,
    ):
        folder, target = Path(name), replace(target, metrics=target.metrics or metrics_url or "")
        (folder / "data.json").write_text(json.dumps(input_data(size)))
        for concurrency in concurrencies:
            levels.append(load.run_level(target, folder, concurrency, requests, check_answers))
            advance(f"{concurrency} sequences")
        faults = target.explain([fault for level in levels for fault in level.faults])
    if csv_path is not None:
        load.write_csv(csv_path, levels)
    about = {
        "simulated": stages.simulated,
        "frames": str(size),
        "checked": "perf_analyzer's exit code, the server's counters of rejections, sessions and "
        "chunks" + (", status and parts of what perf_analyzer wrote down" if check_answers else ""),
        "left_out": "time between controls, which perf_analyzer cannot wait: for that there is "
        "lingbot-world bench",
    }
    bars = [Bar("errors, rejections and sessions left over", len(faults), 0)]
    details = {"levels": [asdict(level) for level in levels]}
    report = Report("load-test", about, [table(levels)], bars, details, faults)
    report.finish(json_path, enforce=True)


def table(levels: Sequence[load.Level]) -> Table:
    """One row per number of live sequences."""
    rows = new_table("perf_analyzer, requests answered", (), (
        "sequences at a time", "requests/s", "responses/s", "P50", "P90", "P99", "sessions",
        "chunks", "first frames, mean, server", "rejections",
    ))  # fmt: skip
    rows.caption = (
        "latencies in ms; perf_analyzer's are to the first response of any request, START and END "
        "included"
    )
    for level in levels:
        row = level.perf_analyzer
        rows.add_row(
            str(level.concurrency),
            row["Inferences/Second"],
            row["Response Throughput"],
            *(f"{int(row[f'p{share} latency']) / 1000:.1f}" for share in (50, 90, 99)),
            f"{level.rise(metrics.OPENED):.0f}",
            f"{level.rise(metrics.CHUNKS):.0f}",
            f"{level.first_frames_ms:.1f}",
            f"{level.rise(metrics.REJECTIONS):.0f}",
        )
    return rows
