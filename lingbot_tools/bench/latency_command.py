"""`scripts/bench latency`: its options, tables, JSON, and the picture of before and after."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any

import click
from lingbot_client.figures import Distribution
from lingbot_client.timeline import Panel, draw
from lingbot_client.trace import acceptances, read_spans, write_trace
from rich.table import Table

from lingbot_tools.bench import commands, latency
from lingbot_tools.bench.drive import FrameSize, errors
from lingbot_tools.bench.hosting import Stages, serving
from lingbot_tools.bench.latency import FIGURES, Results
from lingbot_tools.bench.limits import ALL, CLOSED, INLINE, SCENARIOS, VARIANTS
from lingbot_tools.bench.report import Report, new_table, stated
from lingbot_triton.simulated.profiles import PROFILES, find_profile

THINK_WHERE_COMPUTED = 0.5
"""Seconds a person takes where no profile says what a condition costs."""

CHUNKS_DRAWN = 3


@click.command("latency")
@commands.simulation(scale=1.0)
@commands.checkpoint
@commands.count("--chunks", None, "In each session [20, or 6 if computed].")
@commands.warm_up(2)
@commands.count("--rounds", None, "Sessions per variant, taking turns [1, or 3 if computed].")
@click.option("--think", type=click.FloatRange(0), help="Seconds of thinking [a condition's cost].")
@commands.size("Frames [832x480, or 96x64 if computed].")
@click.option("--url", help="gRPC address of a running server, instead of starting one.")
@click.option("--plot", type=commands.FILE, help="Picture of before and after to write.")
@click.option("--trace", type=commands.FILE, help="Trace for Perfetto to write.")
@commands.json_report
@commands.enforce
def command(
    profile: str, scale: float, checkpoint: str | None, chunks: int | None, warm_up: int,
    rounds: int | None, think: float | None, size: FrameSize | None, url: str | None,
    plot: Path | None, trace: Path | None, json_path: Path | None, enforce: bool,
) -> None:  # fmt: skip
    """Everything in line, prefetch only and all of it, side by side in one run."""
    stages = Stages(profile, scale, checkpoint)
    costs = None if checkpoint else find_profile(profile, scale)
    if think is None:
        think = costs.condition / 1000 if costs else THINK_WHERE_COMPUTED
    size = size or (commands.TINY_SIZE if checkpoint else commands.FULL_SIZE)
    # Weights make conditions that are constant from chunk 10 on, and need no encoding any more.
    chunks, rounds = chunks or (6 if checkpoint else 20), rounds or (3 if checkpoint else 1)
    results = Results(size, chunks, warm_up, rounds, think, costs)
    total = rounds * len(latency.CASES) * (chunks + warm_up)
    with (
        commands.one_line_errors(),
        commands.progress(total) as advance,
        serving(url, stages.environment()) as target,
    ):
        asyncio.run(latency.run(target.grpc, results, advance))
        wrong = target.explain(errors(chain(*results.sessions.values())))
    results.profile = results.profile or latency.measured_profile(results)
    if plot is not None:
        draw_before_after(plot, results)
    if trace is not None:
        spans = read_spans(results.sessions[CLOSED, ALL][0].summary)
        write_trace(trace, spans, f"{CLOSED.description}; {ALL.text}")
    bars = stated(latency.bars(results), scale == 1.0 and not checkpoint)
    about = describe(results, stages, url)
    report = Report("latency", about, list(tables(results)), bars, to_json(results), wrong)
    report.finish(json_path, enforce=enforce)


def describe(results: Results, stages: Stages, url: str | None) -> dict[str, Any]:
    """What was measured, and how."""
    return {
        "simulated": stages.simulated,
        "server": f"the one at {url}, with settings of its own" if url else "started for this run",
        "frames": str(results.size),
        "measured": f"{results.chunks} chunks a session, {results.rounds} session(s) a variant, "
        f"after {results.warm_up} warm-up chunks",
        "scenarios": f"thinking: {results.think:g} s between the last frames and the next control",
        "clocks": "server: since_acceptance, which ends when frames are decoded, before they are "
        "sent; client: from sending the control to the arrival of frames",
        "limit": "what the best variant can reach, if nothing took time but the stages"
        + (", whose costs are medians of calls in this run, in line" if stages.checkpoint else ""),
        "left_out": "network between machines, encoding to video, GPUs",
    }


def tables(results: Results) -> Iterator[Table]:
    """A table per scenario: every figure, variants under one another."""
    numbers = ("mean", "P50", "P90", "P99", "limit", "mean/limit", "mean/inline")
    for scenario in SCENARIOS:
        title = f"{scenario.name}: {scenario.description}"
        table = new_table(title, ("figure", "clock", "variant"), numbers)
        limits = results.limits(scenario)
        for label, clock, field in FIGURES:
            for variant in VARIANTS:
                of_limit, of_inline = results.ratios(scenario, variant)
                value = getattr(results.figures(scenario, variant), field)
                spread = isinstance(value, Distribution)
                digits = 1 if spread else 2
                parts = (value.mean, value.p50, value.p90, value.p99) if spread else (value,)
                table.add_row(
                    *((label, clock) if variant is INLINE else ("", "")),
                    variant.name,
                    *(_number(part, digits) for part in parts),
                    *[""] * (4 - len(parts)),
                    _number(limits.get(field), digits),
                    _number(of_limit.get(field), 3),
                    _number(of_inline.get(field), 3),
                    end_section=variant is ALL,
                )
        yield table


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def to_json(results: Results) -> dict[str, Any]:
    """Every figure, its ratios to the limits and to everything in line, and every chunk."""
    scenarios: dict[str, dict[str, Any]] = {scenario.name: {} for scenario in SCENARIOS}
    for scenario, variant in latency.CASES:
        of_limit, of_inline = results.ratios(scenario, variant)
        sessions = results.sessions[scenario, variant]
        scenarios[scenario.name][variant.name] = {
            "figures": asdict(results.figures(scenario, variant)),
            "of_limit": of_limit,
            "of_inline": of_inline,
            "chunks": [[asdict(sample) for sample in session.samples] for session in sessions],
        }
    profile = asdict(results.profile) if results.profile else None
    return {"profile": profile, "scenarios": scenarios}


def draw_before_after(path: Path, results: Results) -> None:
    """Draw some steady chunks of the closed loop, everything in line above all of it."""
    profile, panels, first = results.profile, [], results.warm_up
    simulated = profile is not None and profile.name in PROFILES
    stages = f" (simulated stages, profile {profile.name})" if profile and simulated else ""
    for variant in (INLINE, ALL):
        spans = read_spans(results.sessions[CLOSED, variant][0].summary)
        mean = results.figures(CLOSED, variant).period.mean
        title = f"{variant.text}: a chunk every {mean:.0f} ms{stages}"
        since = acceptances(spans).get(first, 0.0)
        ends = (span.end for span in spans if span.chunk < first + CHUNKS_DRAWN)
        panels.append(Panel(title, spans, since, max(ends, default=since)))
    width = max(panel.end - panel.since for panel in panels)
    draw(path, [replace(panel, until=panel.since + width) for panel in panels])
