from __future__ import annotations

import math
from dataclasses import replace

import pytest
from lingbot_client.figures import ChunkSample
from lingbot_client.pace import Played
from rich.console import Console

from lingbot_tools.bench.drive import FrameSize
from lingbot_tools.bench.latency import Results, bars, measured_profile
from lingbot_tools.bench.latency_command import tables, to_json
from lingbot_tools.bench.limits import (
    ALL,
    CLOSED,
    INLINE,
    PREFETCH,
    SCENARIOS,
    THINKING,
    VARIANTS,
    limits,
)
from lingbot_tools.bench.report import Bar, bars_table
from lingbot_triton.simulated.profiles import find_profile

PROFILE = find_profile("seed-4xh100", 1.0)
THINK = 0.3534


def ideal(wait: float = 0.0) -> Results:
    """Results of a server that reaches every limit, whose conditions come `wait` ms late."""
    results = Results(FrameSize(96, 64), 4, 1, 1, THINK, PROFILE)
    for scenario in SCENARIOS:
        for variant in VARIANTS:
            best = limits(PROFILE, variant, scenario, THINK * 1000)
            samples, at = [], 0.0
            for index in range(5):
                first, whole = best["first_frames_server"], best["whole_chunk_server"]
                if math.isnan(first):
                    first = whole = best["period"]
                server = {"first_frames": first, "whole_chunk": whole, "condition_wait": wait}
                end = at + whole / 1000
                samples.append(ChunkSample(index, 12, at, at + first / 1000, end, server))
                at += best["period"] / 1000
            results.sessions[scenario, variant] = [Played(samples)]
    return results


def find(rows: list[Bar], text: str) -> list[Bar]:
    return [row for row in rows if text in row.text]


@pytest.mark.parametrize(("value", "met"), [(0.5, True), (0.6, True), (0.61, False)])
def test_a_bar_is_met_up_to_its_value(value: float, met: bool) -> None:
    assert Bar("", value, 0.6).met is met
    assert Bar("", -value, -0.6, at_least=True).met is met


def test_what_could_not_be_measured_misses_its_bar() -> None:
    assert not Bar("", math.nan, 1.0).met
    assert not Bar("", math.nan, 1.0, at_least=True).met


def test_the_table_says_what_was_met_and_what_was_missed() -> None:
    console = Console(width=120)
    with console.capture() as shown:
        console.print(bars_table([Bar("good", 0.5, 0.6), Bar("bad", 0.7, 0.6, unit="ms")]))
    good, bad = (line for line in shown.get().splitlines() if "0.6" in line)
    assert "good" in good
    assert "met" in good
    assert "0.700 ms" in bad
    assert "missed" in bad


def test_a_server_at_its_limits_meets_every_bar() -> None:
    rows = bars(ideal())
    assert all(row.met for row in rows)
    assert find(rows, "first frames")[0].value == pytest.approx(0.595, abs=0.001)
    assert find(rows, "whole chunk")[0].value == pytest.approx(0.667, abs=0.001)
    assert find(rows, "period")[0].value == pytest.approx(0.697, abs=0.001)
    assert [row.note.partition(",")[0] for row in find(rows, "first frames")] == ["means"] * 2


def test_a_condition_that_is_waited_for_misses_its_bar() -> None:
    waits = find(bars(ideal(wait=40.0)), "condition wait")
    assert [row.value for row in waits] == [40.0, 40.0]
    assert not any(row.met for row in waits)


def test_the_first_chunk_may_wait_for_its_condition() -> None:
    results = ideal()
    for variant in (PREFETCH, ALL):
        samples = results.sessions[THINKING, variant][0].samples
        samples[0] = replace(samples[0], server_ms=samples[0].server_ms | {"condition_wait": 300})
    assert all(row.met for row in find(bars(results), "condition wait"))


def test_a_failed_chunk_misses_the_bars_it_belongs_to() -> None:
    results = ideal()
    samples = results.sessions[CLOSED, ALL][0].samples
    samples[-1] = replace(samples[-1], error="broken")
    rows = bars(results)
    assert find(rows, "failed")[0].value == 1
    assert not find(rows, "failed")[0].met
    assert not find(rows, "period")[0].met


def test_the_report_has_every_figure_of_every_variant() -> None:
    found = to_json(ideal())["scenarios"]
    assert set(found) == {"thinking", "closed", "ahead"}
    everything = found["closed"]["all"]
    assert everything["of_limit"]["period"] == pytest.approx(1.0)
    assert everything["of_inline"]["period"] == pytest.approx(1255.0 / 1801.0)
    assert everything["of_limit"]["compute_fps"] == pytest.approx(1.0)
    assert len(everything["chunks"][0]) == 5


def test_a_table_has_a_row_for_every_figure_clock_and_variant() -> None:
    rows = [table.row_count for table in tables(ideal())]
    assert rows == [8 * len(VARIANTS)] * len(SCENARIOS)


def test_costs_of_computing_stages_are_medians_of_calls_that_had_the_machine_alone() -> None:
    results = ideal()
    one = results.sessions[THINKING, INLINE][0]
    one.summary = {
        "spans": [
            ["denoise", 0, 0.0, 9.0],  # warm-up
            *(["denoise", 1, 1.0, 1.0 + cost] for cost in (0.2, 0.3, 0.7)),
            ["condition", 1, 0.0, 0.1],
            ["commit", 1, 0.0, 0.05],
            ["decode", 1, 0.0, 0.06],
        ]
    }
    profile = measured_profile(results)
    assert profile is not None
    assert profile.denoise == pytest.approx(300)
    assert (profile.condition, profile.commit) == pytest.approx((100, 50))
    assert profile.decode_per_latent_frame == pytest.approx(20)


def test_without_spans_there_are_no_measured_costs() -> None:
    assert measured_profile(ideal()) is None
