"""Latency of one session, served in three ways by the same server, at three paces."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lingbot_client import WorldClient
from lingbot_client.figures import ChunkSample, Figures, figures
from lingbot_client.pace import Pace, Played
from lingbot_client.trace import Span, read_spans

from lingbot_tools.bench.bars import Bar
from lingbot_tools.bench.drive import FrameSize, measure
from lingbot_tools.bench.limits import (
    ALL,
    CLOSED,
    INLINE,
    PREFETCH,
    SCENARIOS,
    THINKING,
    VARIANTS,
    Limits,
    Scenario,
    Variant,
    limits,
)
from lingbot_triton.simulated.profiles import CostProfile

FIRST_FRAMES_BAR, WHOLE_CHUNK_BAR, PERIOD_BAR = 0.61, 0.68, 0.71
"""Shares of what everything in line takes; the limits of `seed-4xh100` are 0.595, 0.667, 0.697."""

CONDITION_WAIT_BAR = 1.0
"""Milliseconds that still count as none: picking up a condition that is there is measured too."""

Key = tuple[str, str]
"""Names of a scenario and a variant."""


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    size: FrameSize
    chunks: int
    """Chunks per session that are measured, after the warm-up."""
    warm_up: int
    rounds: int
    think: float
    """Seconds between the last frames and the next control, in the scenario `thinking`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further session options."""


@dataclass
class Results:
    """Every session, by scenario and variant, and what they come to."""

    plan: Plan
    sessions: dict[Key, list[Played]] = field(default_factory=dict)
    profile: CostProfile | None = None
    """Costs of the stages: given for simulated ones, measured for those that compute."""

    def figures(self, scenario: Scenario, variant: Variant) -> Figures:
        played = self.sessions[scenario.name, variant.name]
        return figures([one.samples for one in played], self.plan.warm_up)

    def limits(self, scenario: Scenario, variant: Variant) -> Limits | None:
        if self.profile is None:
            return None
        return limits(self.profile, variant, scenario, self.plan.think * 1000)


async def run(
    client: WorldClient, plan: Plan, on_chunk: Callable[[str, ChunkSample], None]
) -> Results:
    """Measure one session after the other, variants side by side in each round."""
    results = Results(plan)
    for _ in range(plan.rounds):
        for scenario in SCENARIOS:
            for variant in VARIANTS:
                name = f"{scenario.name}, {variant.name}"
                played = await _session(client, plan, scenario, variant, _named(on_chunk, name))
                results.sessions.setdefault((scenario.name, variant.name), []).append(played)
    return results


def _named(
    on_chunk: Callable[[str, ChunkSample], None], name: str
) -> Callable[[ChunkSample], None]:
    return lambda sample: on_chunk(name, sample)


async def _session(
    client: WorldClient,
    plan: Plan,
    scenario: Scenario,
    variant: Variant,
    on_chunk: Callable[[ChunkSample], None],
) -> Played:
    think = plan.think if scenario.think else 0.0
    pace = Pace(plan.warm_up + plan.chunks, think, scenario.ahead)
    options = {"trace": True, **variant.options, **plan.options}
    return await measure(client, plan.size, pace, on_chunk=on_chunk, **options)


def measured_profile(results: Results) -> CostProfile | None:
    """What the stages cost where they compute: medians of calls that had the machine to themselves.

    Everything in line never runs two stages at a time. None without spans to take them from.
    """
    spans = [
        span
        for one in results.sessions[THINKING.name, INLINE.name]
        for span in read_spans(one.summary)
        if span.chunk >= results.plan.warm_up
    ]
    costs = [_median_ms(spans, name) for name in ("condition", "denoise", "commit", "decode")]
    if any(cost is None for cost in costs):
        return None
    condition, denoise, commit, decode = (cost or 0.0 for cost in costs)
    text = "medians of the calls in this run, everything in line"
    return CostProfile("measured", text, condition, (denoise,), commit, decode / 3)


def _median_ms(spans: Sequence[Span], name: str) -> float | None:
    lengths = [(span.end - span.start) * 1000 for span in spans if span.name == name]
    return statistics.median(lengths) if lengths else None


def bars(results: Results) -> list[Bar]:
    """The promises about latency, each by both clocks where both measured it."""
    inline, everything = (results.figures(THINKING, variant) for variant in (INLINE, ALL))
    closed_inline, closed = (results.figures(CLOSED, variant) for variant in (INLINE, ALL))
    failures = sum(
        results.figures(scenario, variant).failures
        for scenario in SCENARIOS
        for variant in VARIANTS
    )
    rows = [Bar("failed chunks", failures, 0)]
    for clock in ("server", "client"):
        for text, name, bar in (
            ("first frames, of everything in line", "first_frames", FIRST_FRAMES_BAR),
            ("whole chunk, of everything in line", "whole_chunk", WHOLE_CHUNK_BAR),
        ):
            mean = (getattr(one, f"{name}_{clock}").mean for one in (everything, inline))
            ratio = _ratio(*mean)
            rows.append(Bar(text, ratio, bar, note=f"means, {clock}'s clock, with time to think"))
    period = _ratio(closed.period.mean, closed_inline.period.mean)
    note = "means, client's clock, closed loop"
    rows.append(Bar("chunk period, of everything in line", period, PERIOD_BAR, note=note))
    rows += [
        Bar(
            f"longest condition wait after the first chunk, {variant.name}",
            _longest_wait(results.sessions[THINKING.name, variant.name]),
            CONDITION_WAIT_BAR,
            unit="ms",
            note=f"{results.plan.think * 1000:.0f} ms to think, warm-up included",
        )
        for variant in (PREFETCH, ALL)
    ]
    return rows


def _longest_wait(sessions: Sequence[Played]) -> float:
    waits = [
        sample.server_ms.get("condition_wait", float("inf"))
        for one in sessions
        for sample in one.samples
        if sample.index > 0
    ]
    return max(waits, default=float("nan"))


def _ratio(value: float, base: float) -> float:
    return value / base if base else float("nan")
