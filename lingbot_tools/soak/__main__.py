"""`python -m lingbot_tools.soak`, which `scripts/soak` runs."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

import click
from rich.table import Table

from lingbot_tools.bench.commands import one_line_errors, progress
from lingbot_tools.bench.report import Report
from lingbot_tools.soak.phases import Phase, endless, play, short
from lingbot_tools.soak.verdict import bars, draw, memory
from lingbot_triton.triton.server import ServerConfig, ServerProcess

PROFILE = "seed-4xh100"
FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(context_settings={"show_default": True})
@click.option("--chunks", type=click.IntRange(0), default=2000, help="Of one endless session.")
@click.option("--sessions", type=click.IntRange(0), default=500, help="Short ones after it.")
@click.option(
    "--simulated", is_flag=True, help="Stages that take almost no time, not the tiny model."
)
@click.option("--json", "json_path", type=FILE, help="Report to write, as JSON.")
@click.option("--plot", type=FILE, help="Picture to write, as PNG or SVG.")
def main(
    chunks: int, sessions: int, simulated: bool, json_path: Path | None, plot: Path | None
) -> None:
    """Play for long and look for what grows: memory, threads, files, latency; exit code 1 then."""
    phases = [phase for phase in (endless(chunks), short(sessions)) if phase.count]
    started = time.monotonic()
    with one_line_errors():
        run(phases, simulated)
    if plot is not None:
        draw(plot, phases)
    report = Report(
        "soak",
        {
            "stages": "simulated" if simulated else "the tiny checkpoint on the CPU",
            "minutes": round((time.monotonic() - started) / 60, 1),
        },
        [table(phase) for phase in phases],
        [bar for phase in phases for bar in bars(phase)],
        {"phases": [asdict(phase) for phase in phases]},
    )
    report.finish(json_path, enforce=True)


def run(phases: list[Phase], simulated: bool) -> None:
    """Play the phases one after another on one server; raises WorldError or ServerError."""
    environment = {"LINGBOT_MAX_SESSIONS": "4"}
    if simulated:
        environment |= {"LINGBOT_SIMULATED": PROFILE, "LINGBOT_SIMULATED_SCALE": "0.005"}
    with (
        progress(sum(phase.count for phase in phases)) as tick,
        ServerProcess(ServerConfig(environment=environment)) as server,
    ):
        for phase in phases:
            asyncio.run(play(phase, server, partial(tick, phase.name)))
            server.check_running()


def table(phase: Phase) -> Table:
    """What every process held after the warm-up and at the end."""
    result = Table(title=f"{phase.name}: {phase.count} {phase.unit}s", title_justify="left")
    for name in ("memory of", "after warm-up", "at the end", f"slope, KB/{phase.unit}"):
        result.add_column(name, justify="left" if name == "memory of" else "right")
    for growth in memory(phase):
        start, end = (f"{kb / 1024:.1f} MB" for kb in (growth.start, growth.end))
        result.add_row(growth.what, start, end, f"{growth.slope:.3f}")
    return result


if __name__ == "__main__":
    main(prog_name="scripts/soak")
