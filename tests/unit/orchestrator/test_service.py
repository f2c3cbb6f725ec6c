"""Requests against fake stages in virtual time: what is admitted, answered, ended and released."""

from __future__ import annotations

import asyncio

import pytest

from lingbot_triton import metrics
from lingbot_triton.orchestrator import responses
from tests.unit.orchestrator.fakes import FakeStages
from tests.unit.orchestrator.house import House
from tests.unit.orchestrator.virtual_time import run


def test_a_session_from_start_to_end() -> None:
    async def scenario() -> None:
        house = House()
        assert await house.send(start=True).done() == ["READY"]
        reply = house.send(chunk=0)
        assert await reply.done() == ["FRAMES"] * 3
        assert [answer.frame_index for answer in reply.answers] == [0, 1, 5]
        assert [len(answer.frames) for answer in reply.answers] == [1, 4, 4]
        assert [answer.info["part"] for answer in reply.answers] == [0, 1, 2]
        reply = house.send(chunk=1, end=True)
        assert await reply.done() == ["FRAMES"] * 3 + ["CLOSED"]
        assert [answer.frame_index for answer in reply.answers[:3]] == [9, 13, 17]
        summary = reply.answers[-1].info
        assert (summary["reason"], summary["chunks"], summary["frames"]) == ("end", 2, 21)
        await house.idle()

    run(scenario())


def test_start_may_carry_control_and_end() -> None:
    async def scenario() -> None:
        house = House()
        reply = house.send(start=True, chunk=0, end=True)
        assert await reply.done() == ["READY"] + ["FRAMES"] * 3 + ["CLOSED"]
        assert await house.send(chunk=1).done() == ["NO_SESSION"]
        await house.idle()

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
        house, gauges = House(), Gauges()
        house.send(start=True)
        (session,) = house.service.table.live
        responses.set_gauges(gauges, [session])
        assert gauges.sessions == {"opening": 1, "open": 0, "closing": 0}
        gauges.least = 1
        await session.opened.wait()
        responses.set_gauges(gauges, [session])
        session.closing = True
        responses.set_gauges(gauges, [session])
        assert (gauges.sessions["closing"], gauges.least) == (1, 1)
        await house.idle()

    run(scenario())


def test_prefetch_starts_with_the_opening_and_stops_at_the_depth() -> None:
    async def scenario() -> None:
        house = House()
        await house.send(start=True).done()
        await asyncio.sleep(100)
        (seen,) = house.stages.sessions.values()
        assert (seen.conditions, seen.denoised) == (2, 0)
        await house.send(chunk=0).done()
        await asyncio.sleep(100)
        assert seen.conditions == 3
        await house.idle()

    run(scenario())


def test_a_control_whose_condition_is_there_does_not_wait() -> None:
    async def scenario() -> None:
        stages = FakeStages()
        stages.costs = {"condition": 5, "denoise": 4, "commit": 1, "decode": 0.25}
        house = House(stages)
        await house.send(start=True).done()
        for chunk in range(4):
            await asyncio.sleep(20)
            reply = house.send(chunk=chunk)
            await reply.done()
            times = reply.answers[0].info["ms"]
            assert times["condition_wait"] == 0
            assert times["since_acceptance"] == 4250, "frames wait for the denoise and one decode"
        await house.idle()

    run(scenario())


def test_the_next_condition_and_the_commit_run_beside_the_frames() -> None:
    async def scenario() -> None:
        stages = FakeStages()
        stages.costs = {"condition": 3, "denoise": 4, "commit": 3, "decode": 1}
        house = House(stages)
        await house.send(start=True, trace=True, chunk=0).done()
        reply = house.send(chunk=1, end=True)
        await reply.done()
        spans = {(name, chunk): (a, b) for name, chunk, a, b in reply.answers[-1].info["spans"]}
        denoised = spans["denoise", 0][1]
        assert spans["commit", 0][0] == denoised
        assert spans["condition", 2][0] == denoised
        assert spans["decode", 0][1] == denoised + 3
        await house.idle()

    run(scenario())


@pytest.mark.parametrize(("chunk", "code"), [(0, "DUPLICATE"), (3, "OUT_OF_ORDER")])
def test_a_wrong_index_leaves_the_session_as_it_was(chunk: int, code: str) -> None:
    async def scenario() -> None:
        house = House()
        await house.send(start=True, chunk=0).done()
        assert await house.send(chunk=chunk).done() == [code]
        assert await house.send(chunk=1).done() == ["FRAMES"] * 3
        await house.idle()

    run(scenario())


def test_a_third_control_ahead_is_refused_and_may_come_again() -> None:
    async def scenario() -> None:
        house = House()
        opening = house.send(start=True, chunk=0)
        ahead = house.send(chunk=1)
        assert await house.send(chunk=2).done() == ["WINDOW_FULL"]
        await opening.done()
        assert await ahead.done() == ["FRAMES"] * 3
        assert await house.send(chunk=2).done() == ["FRAMES"] * 3
        await house.idle()

    run(scenario())


def test_the_length_limit_holds_and_conditions_end_with_it() -> None:
    async def scenario() -> None:
        house = House()
        await house.send(start=True, chunk=0, chunk_count=2).done()
        await house.send(chunk=1).done()
        assert await house.send(chunk=2).done() == ["LENGTH_LIMIT"]
        (seen,) = house.stages.sessions.values()
        assert seen.conditions == 2
        await house.idle()

    run(scenario())


def test_a_steady_condition_is_asked_for_once() -> None:
    async def scenario() -> None:
        house = House(FakeStages(steady_from=3))
        await house.send(start=True, chunk_count=12).done()
        for chunk in range(12):
            assert await house.send(chunk=chunk).done() == ["FRAMES"] * 3
        (seen,) = house.stages.sessions.values()
        assert seen.conditions == 4
        await house.idle()

    run(scenario())


def test_the_session_limit_counts_until_all_is_released() -> None:
    async def scenario() -> None:
        house = House(max_sessions=2)
        await house.send(1, start=True).done()
        await house.send(2, start=True).done()
        assert await house.send(3, start=True).done() == ["SESSION_LIMIT"]
        assert await house.send(1, end=True).done() == ["CLOSED"]
        assert await house.send(3, start=True).done() == ["READY"]
        await house.idle()

    run(scenario())
