"""`python -m lingbot_tools.soak`, which `scripts/soak` runs."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

import click

from lingbot_tools.bench.commands import FILE, json_report, one_line_errors, progress
from lingbot_tools.bench.hosting import TINY, Stages
from lingbot_tools.bench.report import Report
from lingbot_tools.soak.phases import Phase, endless, play, short
from lingbot_tools.soak.verdict import bars, draw, table
from lingbot_triton.triton.foreground import foreground
from lingbot_triton.triton.server import ServerConfig


@click.command(context_settings={"show_default": True})
@click.option("--chunks", type=click.IntRange(0), default=2000, help="Of one endless session.")
@click.option("--sessions", type=click.IntRange(0), default=500, help="Short ones after it.")
@click.option(
    "--simulated", is_flag=True, help="Stages that take almost no time, not the tiny model."
)
@json_report
@click.option("--plot", type=FILE, help="Picture to write, as PNG or SVG.")
def main(
    chunks: int, sessions: int, simulated: bool, json_path: Path | None, plot: Path | None
) -> None:
    """Play for long and look for what grows: memory, threads, files, latency; exit code 1 then."""
    phases = [phase for phase in (endless(chunks), short(sessions)) if phase.count]
    stages = Stages("seed-4xh100", 0.005, None if simulated else TINY)
    started = time.monotonic()
    with one_line_errors():
        run(phases, stages.environment(max_sessions=4))
    if plot is not None:
        draw(plot, phases)
    minutes = round((time.monotonic() - started) / 60, 1)
    report = Report(
        "soak",
        {"simulated": stages.simulated, "minutes": minutes},
        [table(phase) for phase in phases],
        [bar for phase in phases for bar in bars(phase)],
        {"phases": [asdict(phase) for phase in phases]},
    )
    report.finish(json_path, enforce=True)


def run(phases: list[Phase], environment: dict[str, str]) -> None:
    """Play the phases one after another on one server; raises WorldError or ServerError."""
    with (
        progress(sum(phase.count for phase in phases)) as tick,
        foreground(ServerConfig(environment=environment)) as server,
    ):
        for phase in phases:
            asyncio.run(play(phase, server, partial(tick, phase.name)))
            server.check_running()


if __name__ == "__main__":
    main(prog_name="scripts/soak")
