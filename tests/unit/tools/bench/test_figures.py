from __future__ import annotations

import math

import numpy as np
import pytest
from lingbot_client.figures import (
    ChunkSample,
    Distribution,
    compute_fps,
    figures,
    percentile,
    plain,
)


def sample(
    index: int, sent_at: float, first: float, whole: float, error: str = "", frames: int = 12
) -> ChunkSample:
    """A chunk whose server saw 10 ms less than the client; times in seconds."""
    server = {
        "first_frames": first * 1000 - 10,
        "whole_chunk": whole * 1000 - 10,
        "condition_wait": 0.5,
    }
    return ChunkSample(
        index, 0 if error else frames, sent_at, sent_at + first, sent_at + whole,
        {} if error else server, error,
    )  # fmt: skip


def closed_loop(count: int, whole: float) -> list[ChunkSample]:
    return [sample(index, index * whole, whole / 2, whole) for index in range(count)]


@pytest.mark.parametrize("share", [0, 10, 50, 90, 99, 100])
def test_percentiles_are_those_of_numpy(share: float) -> None:
    values = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0]
    assert percentile(values, share) == pytest.approx(np.percentile(values, share))


def test_a_percentile_that_reaches_into_failures_is_infinite() -> None:
    values = [1.0, 2.0, 3.0, math.inf]
    assert percentile(values, 50) == 2.5
    assert percentile(values, 66.6) == pytest.approx(2.998)
    assert percentile(values, 67) == math.inf
    assert percentile([math.inf, math.inf], 50) == math.inf


def test_nothing_measured_is_no_number() -> None:
    nothing = Distribution.of([])
    assert nothing.count == 0
    assert math.isnan(nothing.mean)
    assert math.isnan(nothing.p99)


def test_figures_leave_the_warm_up_out() -> None:
    slow = sample(0, -9.0, 8.0, 9.0)
    found = figures([[slow, *closed_loop(3, 0.5)[1:]]], warm_up=1)
    assert found.chunks == 2
    assert found.whole_chunk_client.mean == pytest.approx(500)
    assert found.whole_chunk_server.mean == pytest.approx(490)
    assert found.first_frames_client.largest == pytest.approx(250)


def test_the_first_measured_period_starts_at_the_last_chunk_of_the_warm_up() -> None:
    found = figures([closed_loop(4, 0.5)], warm_up=2)
    assert found.period.count == 2
    assert found.period.mean == pytest.approx(500)


def test_real_time_factor_is_the_p95_period_over_three_quarters_of_a_second() -> None:
    ends = np.cumsum([1.0, 0.6, 0.6, 0.6, 1.6])
    samples = [sample(index, end - 0.5, 0.2, 0.5) for index, end in enumerate(ends)]
    periods = [600.0, 600.0, 600.0, 1600.0]
    found = figures([samples], warm_up=1)
    assert found.real_time_factor == pytest.approx(np.percentile(periods, 95) / 750)


def test_failures_stay_in_every_denominator() -> None:
    good, late = closed_loop(3, 0.5), sample(3, 1.5, math.inf, 2.0, error="broken")
    found = figures([[*good, late]], warm_up=1)
    assert (found.chunks, found.failures) == (3, 1)
    assert found.whole_chunk_server.count == 3
    assert found.whole_chunk_server.mean == math.inf
    assert found.whole_chunk_server.p50 == pytest.approx(490)
    assert found.compute_fps == pytest.approx(24 / (0.49 + 0.49 + 2.0))


def test_compute_fps_weighs_frames_by_time() -> None:
    samples = [sample(0, 0, 0.1, 0.51), sample(1, 1, 0.1, 1.01)]
    assert compute_fps([samples], warm_up=0) == pytest.approx(24 / 1.5)


def test_a_control_sent_ahead_counts_only_the_time_it_was_not_waiting_for_others() -> None:
    # Chunk 1 is sent while chunk 0 is made, and done 0.6 s after it.
    samples = [sample(0, 0.0, 0.5, 1.01), sample(1, 0.1, 1.2, 1.51)]
    assert compute_fps([samples], warm_up=0) == pytest.approx(24 / (1.0 + 0.6))


def test_what_is_no_number_becomes_null() -> None:
    assert plain({"a": [math.inf, (1.5, math.nan)], "b": "x"}) == {
        "a": [None, [1.5, None]],
        "b": "x",
    }
