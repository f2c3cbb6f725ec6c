from __future__ import annotations

import math

import pytest

from lingbot_tools.bench.limits import AHEAD, ALL, CLOSED, INLINE, PREFETCH, THINKING, limits
from lingbot_triton.simulated.profiles import find_profile

PROFILE = find_profile("seed-4xh100", 1.0)
THINK = PROFILE.condition


def test_with_time_to_think_the_limits_are_those_of_the_design() -> None:
    inline, prefetch, everything = (
        limits(PROFILE, variant, THINKING, THINK) for variant in (INLINE, PREFETCH, ALL)
    )
    assert inline["first_frames_server"] == inline["whole_chunk_server"] == pytest.approx(1801.0)
    assert (
        prefetch["first_frames_server"] == prefetch["whole_chunk_server"] == pytest.approx(1447.6)
    )
    assert everything["first_frames_server"] == pytest.approx(1072.2)
    assert everything["whole_chunk_server"] == pytest.approx(1200.6)
    assert everything["period"] == pytest.approx(1200.6 + THINK)


def test_prefetch_alone_reaches_the_published_frame_rate() -> None:
    assert limits(PROFILE, PREFETCH, CLOSED, 0)["compute_fps"] == pytest.approx(8.29, abs=0.005)


def test_in_a_closed_loop_a_control_waits_for_the_commit_before_it() -> None:
    found = limits(PROFILE, ALL, CLOSED, THINK)
    assert found["period"] == pytest.approx(1255.0)
    assert found["first_frames_server"] == pytest.approx(1072.2 + 1255.0 - 1200.6)
    assert found["whole_chunk_server"] == pytest.approx(1255.0)


def test_in_a_closed_loop_everything_in_line_waits_for_nothing_more() -> None:
    assert limits(PROFILE, INLINE, CLOSED, 0)["period"] == pytest.approx(1801.0)


def test_ahead_only_the_denoiser_limits_the_period() -> None:
    assert limits(PROFILE, ALL, AHEAD, 0)["period"] == pytest.approx(1255.0)
    assert limits(PROFILE, INLINE, AHEAD, 0)["period"] == pytest.approx(1255.0 + 353.4)
    assert math.isnan(limits(PROFILE, ALL, AHEAD, 0)["first_frames_server"])


def test_a_condition_slower_than_the_rest_limits_the_period_although_prefetched() -> None:
    slow = PROFILE.scaled(1.0)
    slow = type(slow)(**{**vars(slow), "condition": 5000.0})
    assert limits(slow, ALL, CLOSED, 0)["period"] == pytest.approx(5000.0)
    assert limits(slow, ALL, AHEAD, 0)["period"] == pytest.approx(5000.0)
    assert limits(slow, ALL, THINKING, 5000.0)["whole_chunk_server"] == pytest.approx(1200.6)


def test_a_scale_of_zero_leaves_no_time_and_no_rate() -> None:
    found = limits(PROFILE.scaled(0), ALL, CLOSED, 0)
    assert found["period"] == 0
    assert math.isnan(found["compute_fps"])
