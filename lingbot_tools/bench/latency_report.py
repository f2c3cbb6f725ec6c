"""What a latency run found: tables, JSON, and the picture of before and after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lingbot_client.figures import Distribution, Figures
from lingbot_client.timeline import Panel, draw
from lingbot_client.trace import Span, acceptances, read_spans, write_trace
from rich.table import Table

from lingbot_tools.bench.drive import errors
from lingbot_tools.bench.latency import Results
from lingbot_tools.bench.limits import (
    ALL,
    CLOSED,
    INLINE,
    SCENARIOS,
    VARIANTS,
    Limits,
    Scenario,
    Variant,
)
from lingbot_triton.simulated.profiles import PROFILES

DISTRIBUTIONS = (
    ("acceptance → first frames, ms", "server", "first_frames_server", "first_frames"),
    ("acceptance → first frames, ms", "client", "first_frames_client", "first_frames"),
    ("acceptance → whole chunk, ms", "server", "whole_chunk_server", "whole_chunk"),
    ("acceptance → whole chunk, ms", "client", "whole_chunk_client", "whole_chunk"),
    ("chunk period, ms", "client", "period", "period"),
    ("condition wait, ms", "server", "condition_wait", None),
)
"""Title, whose clock, the field of `Figures`, and that of `Limits`."""

CHUNKS_DRAWN = 3
ABSENT = "-"


def tables(results: Results) -> Iterator[Table]:
    """A table per scenario: every figure, variants under one another."""
    for scenario in SCENARIOS:
        best = results.limits(scenario, ALL)
        table = Table(title=f"{scenario.name}: {scenario.text}", title_justify="left")
        for name in ("figure", "clock", "variant"):
            table.add_column(name)
        for name in ("mean", "P50", "P90", "P99", "limit", "mean/limit", "mean/inline"):
            table.add_column(name, justify="right")
        for title, clock, field, limit in DISTRIBUTIONS:
            base = _distribution(results, scenario, INLINE, field).mean
            bound = _limit(best, limit)
            for variant in VARIANTS:
                given = _distribution(results, scenario, variant, field)
                first = variant is INLINE
                table.add_row(
                    title if first else "",
                    clock if first else "",
                    variant.name,
                    *(_number(value) for value in (given.mean, given.p50, given.p90, given.p99)),
                    _number(bound),
                    _share(given.mean, bound),
                    _share(given.mean, base) if limit else ABSENT,
                    end_section=variant is ALL,
                )
        _add_rates(table, results, scenario)
        yield table


def _add_rates(table: Table, results: Results, scenario: Scenario) -> None:
    """Rows of the two figures that are one number each."""
    best = results.limits(scenario, ALL)
    fps = best.compute_fps if best else None
    factor = best.real_time_factor if best else None
    for title, clock, name, bound in (
        ("weighted compute FPS", "server", "compute_fps", fps),
        ("real-time factor", "client", "real_time_factor", factor),
    ):
        base = getattr(results.figures(scenario, INLINE), name)
        for variant in VARIANTS:
            value = getattr(results.figures(scenario, variant), name)
            first = variant is INLINE
            table.add_row(
                title if first else "",
                clock if first else "",
                variant.name,
                _number(value, 2),
                *([""] * 3),
                _number(bound, 2),
                _share(value, bound),
                _share(value, base),
                end_section=variant is ALL,
            )


def _distribution(
    results: Results, scenario: Scenario, variant: Variant, field: str
) -> Distribution:
    found: Distribution = getattr(results.figures(scenario, variant), field)
    return found


def _limit(best: Limits | None, name: str | None) -> float | None:
    value: float | None = getattr(best, name) if best and name else None
    return value


def _number(value: float | None, digits: int = 1) -> str:
    return ABSENT if value is None or value != value else f"{value:.{digits}f}"


def _share(value: float, base: float | None) -> str:
    return f"{value / base:.3f}" if base and base == base else ABSENT


def to_json(results: Results) -> dict[str, Any]:
    """Every figure, its limits and ratios to the best variant's, and every chunk behind it."""
    return {
        "profile": asdict(results.profile) if results.profile else None,
        "think_seconds": results.plan.think,
        "warm_up": results.plan.warm_up,
        "variants": {variant.name: asdict(variant) for variant in VARIANTS},
        "scenarios": {
            scenario.name: {
                variant.name: _entry(results, scenario, variant) for variant in VARIANTS
            }
            for scenario in SCENARIOS
        },
    }


def _entry(results: Results, scenario: Scenario, variant: Variant) -> dict[str, Any]:
    found = results.figures(scenario, variant)
    own, best = results.limits(scenario, variant), results.limits(scenario, ALL)
    sessions = results.sessions[scenario.name, variant.name]
    return {
        "figures": asdict(found),
        "own_limits": asdict(own) if own else None,
        "of_limit": _ratios(found, best) if best else None,
        "of_inline": _ratios(found, results.figures(scenario, INLINE)),
        "errors": errors(sessions),
        "chunks": [[asdict(sample) for sample in one.samples] for one in sessions],
    }


def _ratios(found: Figures, base: Figures | Limits) -> dict[str, float]:
    """Means over a limit, or over another variant's means."""
    ratios = {}
    for _, _, field, limit in DISTRIBUTIONS:
        if limit is not None:
            bottom = getattr(base, limit) if isinstance(base, Limits) else getattr(base, field).mean
            ratios[field] = getattr(found, field).mean / bottom if bottom else float("nan")
    rate = base.compute_fps
    ratios["compute_fps"] = found.compute_fps / rate if rate else float("nan")
    factor = base.real_time_factor
    ratios["real_time_factor"] = found.real_time_factor / factor if factor else float("nan")
    return ratios


def plot(path: Path, results: Results) -> None:
    """Draw some steady chunks of the closed loop, everything in line above all of it."""
    panels = []
    for variant in (INLINE, ALL):
        played = results.sessions[CLOSED.name, variant.name][0]
        mean = results.figures(CLOSED, variant).period.mean
        title = f"{variant.text}: a chunk every {mean:.0f} ms{_stages(results)}"
        panels.append(panel(read_spans(played.summary), title, results.plan.warm_up))
    width = max(one.end - one.since for one in panels)
    draw(path, [replace(one, until=one.since + width) for one in panels])


def _stages(results: Results) -> str:
    name = results.profile.name if results.profile else ""
    return f" (simulated stages, profile {name})" if name in PROFILES else ""


def panel(spans: Sequence[Span], title: str, first: int) -> Panel:
    """`CHUNKS_DRAWN` chunks of a session from chunk `first` on, for as long as they last."""
    since = acceptances(spans).get(first, 0.0)
    last = first + CHUNKS_DRAWN - 1
    until = max((span.end for span in spans if span.chunk <= last), default=since)
    margin = 0.02 * (until - since)
    return Panel(title, spans, since - margin, until + margin)


def trace(path: Path, results: Results) -> None:
    """Write the closed loop of all of it for Perfetto."""
    played = results.sessions[CLOSED.name, ALL.name][0]
    write_trace(path, read_spans(played.summary), f"{CLOSED.text}; {ALL.text}")
