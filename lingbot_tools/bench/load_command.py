"""`scripts/load-test`."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
from rich.table import Table

from lingbot_tools.bench import commands, load
from lingbot_tools.bench.bars import Bar
from lingbot_tools.bench.drive import FrameSize
from lingbot_tools.bench.hosting import computing, device, serving, simulated

CHECKED_SIZE = FrameSize(32, 16)
"""Frames small enough for perf_analyzer to write all of them down as text."""


def numbers(text: str) -> tuple[int, ...]:
    """Read whole numbers above 0, with commas between them."""
    found = tuple(int(part) for part in text.split(","))
    if min(found) < 1:
        raise ValueError(f"{text!r} has a number below 1")
    return found


@click.command("load-test")
@commands.add(
    click.option(
        "--profile", default="seed-4xh100", show_default=True, help="Costs of the simulated stages."
    ),
    click.option(
        "--scale",
        type=click.FloatRange(0),
        default=0.05,
        show_default=True,
        help="Factor on the profile's costs.",
    ),
)
@click.option("--checkpoint", help='Compute instead of simulating: a folder, or "tiny".')
@click.option(
    "--concurrency",
    "levels",
    type=numbers,
    default="1,4,8",
    show_default=True,
    help="Live sequences, one run of perf_analyzer each.",
)
@click.option(
    "--requests",
    type=click.IntRange(1),
    default=200,
    show_default=True,
    help="Requests of each run.",
)
@click.option(
    "--size",
    type=commands.frame_size,
    metavar="WxH",
    help="Frames [832x480, 96x64 if computed, 32x16 with --check-answers].",
)
@click.option(
    "--check-answers",
    is_flag=True,
    help="Look at every answer too, not only at the server's counters.",
)
@click.option("--url", help="gRPC address of a running server; needs --metrics-url.")
@click.option("--metrics-url", default="", help="host:port of the running server's metrics.")
@click.option("--csv", "csv_path", type=commands.FILE, help="perf_analyzer's results to write.")
@click.option("--json", "json_path", type=commands.FILE, help="Report to write, as JSON.")
def command(
    profile: str, scale: float, checkpoint: str | None, levels: tuple[int, ...], requests: int,
    size: FrameSize | None, check_answers: bool, url: str | None, metrics_url: str,
    csv_path: Path | None, json_path: Path | None,
) -> None:  # fmt: skip
    """NVIDIA's perf_analyzer plays whole sessions; exits with 1 on any error or rejection."""
    if url and not metrics_url:
        raise click.UsageError("--url needs --metrics-url: errors only show in the counters")
    if size is None:
        size = commands.TINY_SIZE if checkpoint else commands.SIMULATED_SIZE
        size = CHECKED_SIZE if check_answers else size
    settings = {"max_sessions": max(8, *levels)}
    environment = (
        computing(checkpoint, **settings) if checkpoint else simulated(profile, scale, **settings)
    )
    found = []
    with (
        commands.one_line_errors(load.LoadError),
        commands.progress(len(levels)) as advance,
        tempfile.TemporaryDirectory(prefix="lingbot-load-") as folder,
        serving(url, environment) as target,
    ):
        target = replace(target, metrics=target.metrics or metrics_url)
        load.write_data(Path(folder), size)
        for concurrency in levels:
            level = load.run_level(target, Path(folder), concurrency, requests, check_answers)
            advance(f"{concurrency} sequences")
            found.append(level)
        faults = target.explain([fault for level in found for fault in level.faults()])
    if csv_path is not None:
        load.write_csv(csv_path, found)
    stages = (
        f"nothing; the stages compute with the checkpoint {checkpoint!r} on {device()}"
        if checkpoint
        else f"the stages: each sleeps for the cost of profile {profile!r} times {scale:g}"
    )
    commands.finish(
        "load-test",
        {
            "simulated": stages,
            "frames": f"{size.width}x{size.height}",
            "checked": "perf_analyzer's exit code, the server's counters of rejections, sessions "
            "and chunks"
            + (", status and parts of what perf_analyzer wrote down" if check_answers else ""),
            "left_out": "time between controls, which perf_analyzer cannot wait: for that there "
            "is lingbot-world bench",
        },
        [table(found)],
        [Bar("errors, rejections and sessions left over", len(faults), 0)],
        {"levels": [to_json(level) for level in found]},
        errors=faults,
        json_path=json_path,
        enforce=True,
    )


def table(found: Sequence[load.Level]) -> Table:
    """One row per number of live sequences."""
    shown = Table(
        title="perf_analyzer, requests answered", title_justify="left",
        caption="latencies in ms; perf_analyzer's are to the first response of any request, "
        "START and END included",
    )  # fmt: skip
    for name in (
        "sequences at a time", "requests/s", "responses/s", "P50", "P90", "P99",
        "sessions", "chunks", "first frames, mean, server", "rejections",
    ):  # fmt: skip
        shown.add_column(name, justify="right")
    for level in found:
        shown.add_row(
            str(level.concurrency),
            level.row["Inferences/Second"],
            level.row["Response Throughput"],
            *(f"{int(level.row[f'p{share} latency']) / 1000:.1f}" for share in (50, 90, 99)),
            f"{level.sequences:.0f}",
            f"{level.chunks:.0f}",
            f"{level.first_frames_ms:.1f}",
            f"{level.rejections:.0f}",
        )
    return shown


def to_json(level: load.Level) -> dict[str, object]:
    return {
        "concurrency": level.concurrency,
        "seconds": level.seconds,
        "perf_analyzer": level.row,
        "counters": {name: rise for name, rise in level.counters.items() if "_bucket" not in name},
        "answers": dict(level.answers),
        "faults": level.faults(),
    }
