"""`python -m lingbot_tools.soak`, which `scripts/soak` runs."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

import click

from lingbot_tools.bench.commands import json_report, one_line_errors, progress
from lingbot_tools.bench.hosting import TINY, Stages
from lingbot_tools.bench.report import Report
from lingbot_tools.soak.phase import Phase, play
from lingbot_triton.triton.foreground import foreground
from lingbot_triton.triton.server import ServerConfig


@click.command(context_settings={"show_default": True})
@click.option("--chunks", type=click.IntRange(0), default=2000, help="Of one endless session.")
@click.option("--sessions", type=click.IntRange(0), default=500, help="Short ones after it.")
@click.option("--simulated", is_flag=True, help="Stages that take little time, not the tiny model.")
@json_report
def main(chunks: int, sessions: int, simulated: bool, json_path: Path | None) -> None:
    """Play for long and look for what grows: memory, threads, files, latency; exit code 1 then."""
    phases = [phase for phase in (Phase.endless(chunks), Phase.short(sessions)) if phase.count]
    stages = Stages("seed-4xh100", 0.005, None if simulated else TINY)
    config = ServerConfig(environment=stages.environment(max_sessions=4))
    started = time.monotonic()
    with one_line_errors(), progress(chunks + sessions) as tick, foreground(config) as server:
        for phase in phases:
            asyncio.run(play(phase, server, partial(tick, phase.name)))
            server.check_running()
    minutes = round((time.monotonic() - started) / 60, 1)
    bars = [bar for phase in phases for bar in phase.bars()]
    details = {"phases": [asdict(phase) for phase in phases]}
    report = Report("soak", {"simulated": stages.simulated, "minutes": minutes}, [], bars, details)
    report.finish(json_path, enforce=True)


if __name__ == "__main__":
    main(prog_name="scripts/soak")
