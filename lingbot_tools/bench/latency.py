"""Latency of one session, served in three ways by the same server, at three paces."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, product
from typing import Any

from lingbot_client import WorldClient
from lingbot_client.figures import DISTRIBUTIONS, Distribution, Figures, figures
from lingbot_client.pace import Pace, Played
from lingbot_client.trace import read_spans

from lingbot_tools.bench.drive import FrameSize, measure, take_turns
from lingbot_tools.bench.limits import (
    ALL,
    CLOSED,
    INLINE,
    PREFETCH,
    SCENARIOS,
    THINKING,
    VARIANTS,
    Scenario,
    Variant,
    limits,
)  # fmt: skip
from lingbot_tools.bench.report import Bar
from lingbot_triton.simulated.profiles import CostProfile

FIRST_FRAMES_BAR, WHOLE_CHUNK_BAR, PERIOD_BAR = 0.61, 0.68, 0.71
"""Shares of what everything in line takes; the limits of `seed-4xh100` are 0.595, 0.667, 0.697."""

CONDITION_WAIT_BAR = 1.0
"""Milliseconds that still count as none: picking up a condition that is there is measured too."""

CASES = tuple(product(SCENARIOS, VARIANTS))
FIGURES = (
    *((f"{title}, ms", clock, field) for title, clock, field in DISTRIBUTIONS),
    ("weighted compute FPS", "server", "compute_fps"),
    ("real-time factor", "client", "real_time_factor"),
)
"""Titles, whose clock, and fields of `Figures`."""


@dataclass
class Results:
    """What is measured, every session of it, and what they come to."""

    size: FrameSize
    chunks: int
    """Chunks per session that are measured, after the warm-up."""
    warm_up: int
    rounds: int
    think: float
    """Seconds between the last frames and the next control, in the scenario `thinking`."""
    profile: CostProfile | None
    """Costs of the stages: known for simulated ones, measured for those that compute."""
    sessions: dict[tuple[Scenario, Variant], list[Played]] = field(default_factory=dict)

    def figures(self, scenario: Scenario, variant: Variant) -> Figures:
        played = self.sessions[scenario, variant]
        return figures([session.samples for session in played], self.warm_up)

    def limits(self, scenario: Scenario) -> dict[str, float]:
        """What the best variant can reach; nothing where costs are not known."""
        if self.profile is None:
            return {}
        return limits(self.profile, ALL, scenario, self.think * 1000)

    def ratios(
        self, scenario: Scenario, variant: Variant
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Means over the limits, and over the means of everything in line."""
        inline = means(self.figures(scenario, INLINE))
        del inline["condition_wait"]
        measured = means(self.figures(scenario, variant))
        return _ratios(measured, self.limits(scenario)), _ratios(measured, inline)


def means(measured: Figures) -> dict[str, float]:
    """Means of the distributions and of what is one number, by field."""
    fields = {field: getattr(measured, field) for _, _, field in FIGURES}
    return {
        field: value.mean if isinstance(value, Distribution) else value
        for field, value in fields.items()
    }


def _ratios(values: dict[str, float], bases: dict[str, float]) -> dict[str, float]:
    """Values over those of their bases that are there; NaN where there is nothing to compare."""
    return {name: values[name] / base if base else math.nan for name, base in bases.items()}


async def run(address: str, results: Results, advance: Callable[[str], None]) -> None:
    """Measure one session after the other, variants side by side in each round."""

    async def play(scenario: Scenario, variant: Variant) -> Played:
        think = results.think if scenario.think else 0.0
        pace = Pace(results.warm_up + results.chunks, think, scenario.ahead)
        options: dict[str, Any] = {"trace": True, **variant.options}
        name = f"{scenario.name}, {variant.name}"
        return await measure(
            client, results.size, pace, on_chunk=lambda sample: advance(name), **options
        )

    cases = {case: partial(play, *case) for case in CASES}
    async with WorldClient(address) as client:
        results.sessions = await take_turns(results.rounds, cases)


def measured_profile(results: Results) -> CostProfile | None:
    """What the stages cost where they compute: medians of calls that had the machine to themselves.

    Everything in line never runs two stages at a time. None without spans to take them from.
    """
    lengths: dict[str, list[float]] = {}
    for session in results.sessions[THINKING, INLINE]:
        for span in read_spans(session.summary):
            if span.chunk >= results.warm_up:
                lengths.setdefault(span.name, []).append((span.end - span.start) * 1000)
    calls = ("condition", "denoise", "commit", "decode")
    if not lengths.keys() >= set(calls):
        return None
    condition, denoise, commit, decode = (statistics.median(lengths[name]) for name in calls)
    description = "medians of the calls in this run, everything in line"
    return CostProfile("measured", description, condition, (denoise,), commit, decode / 3)


def bars(results: Results) -> list[Bar]:
    """The promises about latency, each by both clocks where both measured it."""
    thinking, closed = (results.ratios(scenario, ALL)[1] for scenario in (THINKING, CLOSED))
    rows = [Bar("failed chunks", sum(results.figures(*case).failures for case in CASES), 0)]
    for clock in ("server", "client"):
        for name, figure, bar in (
            ("first frames", f"first_frames_{clock}", FIRST_FRAMES_BAR),
            ("whole chunk", f"whole_chunk_{clock}", WHOLE_CHUNK_BAR),
        ):
            note = f"means, {clock}'s clock, with time to think"
            rows.append(Bar(f"{name}, of everything in line", thinking[figure], bar, note=note))
    note = "means, client's clock, closed loop"
    rows.append(Bar("chunk period, of everything in line", closed["period"], PERIOD_BAR, note=note))
    note = f"{results.think * 1000:.0f} ms to think, warm-up included"
    for variant in (PREFETCH, ALL):
        sessions = (session.samples[1:] for session in results.sessions[THINKING, variant])
        waits = (sample.server_ms.get("condition_wait", math.inf) for sample in chain(*sessions))
        wait = max(waits, default=math.nan)
        name = f"longest condition wait after the first chunk, {variant.name}"
        rows.append(Bar(name, wait, CONDITION_WAIT_BAR, unit="ms", note=note))
    return rows
