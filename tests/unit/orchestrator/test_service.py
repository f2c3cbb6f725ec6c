"""Requests against fake stages in virtual time: what is admitted, answered, ended and released."""

from __future__ import annotations

import asyncio

import pytest

from lingbot_triton import metrics
from lingbot_triton.orchestrator import responses
from tests.unit.orchestrator.fakes import FakeStages
from tests.unit.orchestrator.harness import ServiceHarness
from tests.unit.orchestrator.virtual_time import run


def test_a_session_from_start_to_end() -> None:
    async def scenario() -> None:
        harness = ServiceHarness()
        assert await harness.send(start=True).done() == ["READY"]
        sink = harness.send(chunk=0)
        assert await sink.done() == ["FRAMES"] * 3
        assert [response.frame_index for response in sink.responses] == [0, 1, 5]
        assert [len(response.frames) for response in sink.responses] == [1, 4, 4]
        assert [response.info["part"] for response in sink.responses] == [0, 1, 2]
        sink = harness.send(chunk=1, end=True)
        assert await sink.done() == ["FRAMES"] * 3 + ["CLOSED"]
        assert [response.frame_index for response in sink.responses[:3]] == [9, 13, 17]
        summary = sink.responses[-1].info
        assert (summary["reason"], summary["chunks"], summary["frames"]) == ("end", 2, 21)
        await harness.idle()

    run(scenario())


def test_start_may_carry_control_and_end() -> None:
    async def scenario() -> None:
        harness = ServiceHarness()
        sink = harness.send(start=True, chunk=0, end=True)
        assert await sink.done() == ["READY"] + ["FRAMES"] * 3 + ["CLOSED"]
        assert await harness.send(chunk=1).done() == ["NO_SESSION"]
        await harness.idle()

    run(scenario())


def test_a_session_is_in_a_gauge_at_every_moment() -> None:
    class Gauges(metrics.NoObserver):
        def __init__(self) -> None:
            self.sessions: dict[str, float] = {}
            self.least = float("inf")

        def set(self, metric: metrics.MetricSpec, value: float, label: str = "") -> None:
            if metric is metrics.SESSIONS:
                self.sessions[label] = value
                self.least = min(self.least, sum(self.sessions.values()))

    async def scenario() -> None:
        harness, gauges = ServiceHarness(), Gauges()
        harness.send(start=True)
        (session,) = harness.service.table.live
        responses.set_gauges(gauges, [session])
        assert gauges.sessions == {"opening": 1, "open": 0, "closing": 0}
        gauges.least = 1
        await session.opened.wait()
        responses.set_gauges(gauges, [session])
        session.end.closing = True
        responses.set_gauges(gauges, [session])
        assert (gauges.sessions["closing"], gauges.least) == (1, 1)
        await harness.idle()

    run(scenario())


def test_prefetch_starts_with_the_opening_and_stops_at_the_depth() -> None:
    async def scenario() -> None:
        harness = ServiceHarness()
        await harness.send(start=True).done()
        await asyncio.sleep(100)
        (seen,) = harness.stages.sessions.values()
        assert (seen.conditions, seen.denoised) == (2, 0)
        await harness.send(chunk=0).done()
        await asyncio.sleep(100)
        assert seen.conditions == 3
        await harness.idle()

    run(scenario())


def test_a_control_whose_condition_is_there_does_not_wait() -> None:
    async def scenario() -> None:
        stages = FakeStages()
        stages.costs = {"condition": 5, "denoise": 4, "commit": 1, "decode": 0.25}
        harness = ServiceHarness(stages)
        await harness.send(start=True).done()
        for chunk in range(4):
            await asyncio.sleep(20)
            sink = harness.send(chunk=chunk)
            await sink.done()
            times = sink.responses[0].info["ms"]
            assert times["condition_wait"] == 0
            assert times["since_acceptance"] == 4250, "frames wait for the denoise and one decode"
        await harness.idle()

    run(scenario())


def test_the_next_condition_and_the_commit_run_beside_the_frames() -> None:
    async def scenario() -> None:
        stages = FakeStages()
        stages.costs = {"condition": 3, "denoise": 4, "commit": 3, "decode": 1}
        harness = ServiceHarness(stages)
        await harness.send(start=True, trace=True, chunk=0).done()
        sink = harness.send(chunk=1, end=True)
        await sink.done()
        spans = {(name, chunk): (a, b) for name, chunk, a, b in sink.responses[-1].info["spans"]}
        denoised = spans["denoise", 0][1]
        assert spans["commit", 0][0] == denoised
        assert spans["condition", 2][0] == denoised
        assert spans["decode", 0][1] == denoised + 3
        await harness.idle()

    run(scenario())


@pytest.mark.parametrize(("chunk", "code"), [(0, "DUPLICATE"), (3, "OUT_OF_ORDER")])
def test_a_wrong_index_leaves_the_session_as_it_was(chunk: int, code: str) -> None:
    async def scenario() -> None:
        harness = ServiceHarness()
        await harness.send(start=True, chunk=0).done()
        assert await harness.send(chunk=chunk).done() == [code]
        assert await harness.send(chunk=1).done() == ["FRAMES"] * 3
        await harness.idle()

    run(scenario())


def test_a_third_control_ahead_is_refused_and_may_come_again() -> None:
    async def scenario() -> None:
        harness = ServiceHarness()
        opening = harness.send(start=True, chunk=0)
        ahead = harness.send(chunk=1)
        assert await harness.send(chunk=2).done() == ["WINDOW_FULL"]
        await opening.done()
        assert await ahead.done() == ["FRAMES"] * 3
        assert await harness.send(chunk=2).done() == ["FRAMES"] * 3
        await harness.idle()

    run(scenario())


def test_the_length_limit_holds_and_conditions_end_with_it() -> None:
    async def scenario() -> None:
        harness = ServiceHarness()
        await harness.send(start=True, chunk=0, chunk_count=2).done()
        await harness.send(chunk=1).done()
        assert await harness.send(chunk=2).done() == ["LENGTH_LIMIT"]
        (seen,) = harness.stages.sessions.values()
        assert seen.conditions == 2
        await harness.idle()

    run(scenario())


def test_a_steady_condition_is_asked_for_once() -> None:
    async def scenario() -> None:
        harness = ServiceHarness(FakeStages(steady_from=3))
        await harness.send(start=True, chunk_count=12).done()
        for chunk in range(12):
            assert await harness.send(chunk=chunk).done() == ["FRAMES"] * 3
        (seen,) = harness.stages.sessions.values()
        assert seen.conditions == 4
        await harness.idle()

    run(scenario())


def test_the_session_limit_counts_until_all_is_released() -> None:
    async def scenario() -> None:
        harness = ServiceHarness(max_sessions=2)
        await harness.send(1, start=True).done()
        await harness.send(2, start=True).done()
        assert await harness.send(3, start=True).done() == ["SESSION_LIMIT"]
        assert await harness.send(1, end=True).done() == ["CLOSED"]
        assert await harness.send(3, start=True).done() == ["READY"]
        await harness.idle()

    run(scenario())
