"""`scripts/bench sessions`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from lingbot_client import WorldClient
from rich.table import Table

from lingbot_tools.bench import commands, sessions
from lingbot_tools.bench.drive import FrameSize, errors
from lingbot_tools.bench.hosting import Target, serving, simulated
from lingbot_triton.simulated.profiles import CostProfile, find_profile
from lingbot_triton.stage import STAGES
from lingbot_triton.triton.placement import Place
from lingbot_triton.triton.render import write

Results = sessions.Results


@click.command("sessions")
@commands.profile_options
@click.option(
    "--chunks",
    type=click.IntRange(2),
    default=16,
    show_default=True,
    help="Chunks of each session, after the warm-up.",
)
@click.option(
    "--warm-up",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="Chunks left out at the start of every session.",
)
@click.option(
    "--size",
    type=commands.frame_size,
    metavar="WxH",
    default="832x480",
    show_default=True,
    help="Frames.",
)
@commands.report_options
def command(
    profile: str, scale: float, chunks: int, warm_up: int, size: FrameSize,
    json_path: Path | None, enforce: bool,
) -> None:  # fmt: skip
    """Several sessions at a time: use of the workers, fairness, and what silent ones cost."""
    costs = find_profile(profile, scale)
    total = sum(case.sessions for case in sessions.CASES) * (chunks + warm_up)
    found: list[Results] = []
    wrong: list[str] = []
    with commands.one_line_errors(), commands.progress(total) as advance:
        for case in sessions.CASES:
            with tempfile.TemporaryDirectory(prefix="lingbot-instances-") as folder:
                repository = instances(Path(folder), case.instances)
                with serving(None, simulated(profile, scale), repository) as target:
                    work = _measure(target, case, size, chunks, warm_up, costs, advance)
                    found.append(commands.run(work))
                    wrong += target.explain(errors(found[-1].played))
    commands.finish(
        "sessions",
        {
            "simulated": f"the stages: each sleeps for the cost of profile {costs.name!r} times "
            f"{scale:g} and makes tensors of the real size; all else is real",
            "frames": f"{size.width}x{size.height}",
            "measured": f"closed loops, {chunks} chunks a session after {warm_up} warm-up chunks; "
            "a server of its own for each case, with so many instances of every worker",
            "window": "from the moment the last session ended its warm-up until the first one had "
            "all its chunks",
            "left_out": "GPUs: instances here sleep side by side, on a GPU they would share it",
        },
        [table(found)],
        commands.noted(sessions.bars(found), stated=scale == 1.0),
        {"cases": [to_json(one) for one in found]},
        errors=wrong,
        json_path=json_path,
        enforce=enforce,
    )


def instances(folder: Path, count: int) -> Path:
    """A copy of the model repository with `count` instances of every worker."""
    write(folder, {spec.name: Place(count=count) for spec in STAGES})
    return folder


async def _measure(
    target: Target,
    case: sessions.Case,
    size: FrameSize,
    chunks: int,
    warm_up: int,
    costs: CostProfile,
    advance: Callable[[str], None],
) -> Results:
    async with WorldClient(target.grpc) as client:
        return await sessions.run(
            client, target.metrics, case, size, chunks, warm_up, costs,
            on_chunk=lambda sample: advance(case.name),
        )  # fmt: skip


def table(found: list[Results]) -> Table:
    """One row per case."""
    shown = Table(title="sessions at a time, closed loops", title_justify="left")
    shown.add_column("case")
    for name in (
        "chunks each", "seconds", "chunks/s", "ideal", "utilisation", "by Triton's counter",
        "first frames P50, ms", "period P50, ms",
    ):  # fmt: skip
        shown.add_column(name, justify="right")
    for one in found:
        figures = one.figures
        shown.add_row(
            one.case.name,
            " ".join(map(str, one.chunks)),
            f"{one.seconds:.1f}",
            f"{one.throughput:.3f}",
            f"{one.case.instances / one.cost:.3f}" if one.cost else "-",
            f"{one.utilisation:.3f}",
            f"{one.counted_utilisation:.3f}",
            f"{figures.first_frames_server.p50:.0f}",
            f"{figures.period.p50:.0f}",
        )
    return shown


def to_json(one: Results) -> dict[str, Any]:
    return {
        "case": asdict(one.case),
        "window_seconds": one.seconds,
        "chunks": one.chunks,
        "chunks_per_second": one.throughput,
        "utilisation": one.utilisation,
        "utilisation_by_tritons_counter": one.counted_utilisation,
        "unfairness": one.unfairness,
        "silent_chunks": one.silent_chunks,
        "figures": asdict(one.figures),
    }
