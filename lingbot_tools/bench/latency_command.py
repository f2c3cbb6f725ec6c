"""`scripts/bench latency`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from lingbot_client import WorldClient

from lingbot_tools.bench import commands, latency, latency_report
from lingbot_tools.bench.drive import FrameSize, errors
from lingbot_tools.bench.hosting import Target, computing, device, serving, simulated
from lingbot_tools.bench.limits import SCENARIOS, VARIANTS
from lingbot_triton.simulated.profiles import find_profile

THINK_WHERE_COMPUTED = 0.5
"""Seconds a person takes where no profile says what a condition costs."""


@click.command("latency")
@commands.profile_options
@click.option("--checkpoint", help='Compute instead of simulating: a folder, or "tiny".')
@click.option("--chunks", type=click.IntRange(1), help="In each session [20, or 6 if computed].")
@click.option(
    "--warm-up",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="Chunks left out at the start of every session.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    help="Sessions per variant, the variants taking turns [1, or 3 if computed].",
)
@click.option("--think", type=click.FloatRange(0), help="Seconds of thinking [a condition's cost].")
@click.option(
    "--size",
    type=commands.frame_size,
    metavar="WxH",
    help="Frames [832x480, or 96x64 if computed].",
)
@commands.url_option
@click.option("--plot", type=commands.FILE, help="Picture of before and after to write.")
@click.option("--trace", type=commands.FILE, help="Trace for Perfetto to write.")
@commands.report_options
def command(
    profile: str, scale: float, checkpoint: str | None, chunks: int | None, warm_up: int,
    rounds: int | None, think: float | None, size: FrameSize | None, url: str | None,
    plot: Path | None, trace: Path | None, json_path: Path | None, enforce: bool,
) -> None:  # fmt: skip
    """Everything in line, prefetch only and all of it, side by side in one run."""
    costs = None if checkpoint else find_profile(profile, scale)
    if think is None:
        think = costs.condition / 1000 if costs else THINK_WHERE_COMPUTED
    size = size or (commands.TINY_SIZE if checkpoint else commands.SIMULATED_SIZE)
    # Weights make conditions that are constant from chunk 10 on, and need no encoding any more.
    chunks = chunks or (6 if checkpoint else 20)
    rounds = rounds or (3 if checkpoint else 1)
    plan = latency.Plan(size, chunks, warm_up, rounds, think)
    environment = computing(checkpoint) if checkpoint else simulated(profile, scale)
    total = rounds * len(SCENARIOS) * len(VARIANTS) * (chunks + warm_up)
    with (
        commands.one_line_errors(),
        commands.progress(total) as advance,
        serving(url, environment) as target,
    ):
        results = commands.run(_measure(target, plan, lambda name, sample: advance(name)))
        played = [one for sessions in results.sessions.values() for one in sessions]
        wrong = target.explain(errors(played))
    results.profile = costs or latency.measured_profile(results)
    found = latency.bars(results)
    if plot is not None:
        latency_report.plot(plot, results)
    if trace is not None:
        latency_report.trace(trace, results)
    commands.finish(
        "latency",
        _about(results, checkpoint, scale, url),
        list(latency_report.tables(results)),
        commands.noted(found, stated=scale == 1.0 and not checkpoint),
        latency_report.to_json(results),
        errors=wrong,
        json_path=json_path,
        enforce=enforce,
    )


async def _measure(target: Target, plan: latency.Plan, on_chunk: Any) -> latency.Results:
    async with WorldClient(target.grpc) as client:
        return await latency.run(client, plan, on_chunk)


def _about(
    results: latency.Results, checkpoint: str | None, scale: float, url: str | None
) -> dict[str, Any]:
    plan = results.plan
    if checkpoint:
        stages = f"nothing; the stages compute with the checkpoint {checkpoint!r} on {device()}"
    else:
        stages = (
            f"the stages: each sleeps for the cost of profile {results.profile.name!r} "
            f"times {scale:g} and makes tensors of the real size; all else is real"
            if results.profile
            else ""
        )
    return {
        "simulated": stages,
        "server": f"the one at {url}, with settings of its own" if url else "started for this run",
        "frames": f"{plan.size.width}x{plan.size.height}",
        "measured": f"{plan.chunks} chunks a session, {plan.rounds} session(s) a variant, after "
        f"{plan.warm_up} warm-up chunks",
        "scenarios": f"thinking: {plan.think:g} s between the last frames and the next control",
        "clocks": "server: since_acceptance, which ends when frames are decoded, before they are "
        "sent; client: from sending the control to the arrival of frames",
        "limit": "what the best variant can reach, if nothing took time but the stages"
        + (", whose costs are medians of calls in this run, in line" if checkpoint else ""),
        "left_out": "network between machines, encoding to video, GPUs",
    }
