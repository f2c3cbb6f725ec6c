"""Workers that stop answering: who waits for them, for how long, and what is left of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lingbot_triton.orchestrator.session import Session
from tests.unit.orchestrator.fakes import FakeStages
from tests.unit.orchestrator.harness import ServiceHarness
from tests.unit.orchestrator.virtual_time import run


async def _stopped_harness(stage: str, **settings: int | float) -> ServiceHarness:
    """A harness with session 1 after its first chunk, whose `stage` then stops answering."""
    harness = ServiceHarness(FakeStages(), stage_timeout_seconds=30, **settings)
    assert await harness.send(1, start=True, chunk=0).done() == ["READY"] + ["FRAMES"] * 3
    await asyncio.sleep(20)
    harness.stages.stop(stage)
    return harness


@pytest.mark.parametrize("stage", ["condition", "denoise", "decode"])
def test_a_stopped_stage_times_out_and_lets_go_when_it_goes_on(stage: str) -> None:
    async def scenario() -> None:
        harness = await _stopped_harness(stage, max_sessions=2)
        started = harness.clock()
        # Two conditions are there already, so a stopped encoder is missed at the third chunk.
        chunk, last = 1, "FRAMES"
        while last == "FRAMES":
            last = (await harness.send(1, chunk=chunk).done())[-1]
            chunk += 1
        assert last == "STAGE_TIMEOUT"
        assert 30 <= harness.clock() - started < 45
        assert await harness.send(1, end=True).done() == ["SESSION_FAILED"]
        assert harness.clock() - started < 70, "END does not wait for the stopped stage"
        assert len(harness.service.table) == 1, "its worker still holds the session"
        harness.stages.go_on(stage)
        await asyncio.sleep(5)
        assert len(harness.service.table) == 0
        await harness.idle()

    run(scenario())


def test_a_session_ended_beside_a_stopped_stage_gives_its_id_free() -> None:
    async def scenario() -> None:
        harness = await _stopped_harness("decode")
        assert await harness.send(1, end=True).done() == ["CLOSED"]
        assert await harness.send(1, start=True).done() == ["STAGE_TIMEOUT"]
        assert len(harness.service.table) == 2
        harness.stages.go_on("decode")
        assert await harness.send(1, start=True, chunk=0).done() == ["READY"] + ["FRAMES"] * 3
        await harness.idle()

    run(scenario())


def test_sessions_that_a_stopped_stage_holds_count_until_it_lets_go() -> None:
    async def scenario() -> None:
        harness = await _stopped_harness("denoise", max_sessions=2)
        assert await harness.send(1, end=True).done() == ["CLOSED"]
        assert await harness.send(2, start=True).done() == ["STAGE_TIMEOUT"]
        assert await harness.send(3, start=True).done() == ["SESSION_LIMIT"]
        harness.stages.go_on("denoise")
        await asyncio.sleep(5)
        assert await harness.send(3, start=True, chunk=0).done() == ["READY"] + ["FRAMES"] * 3
        await harness.idle()

    run(scenario())


def test_starting_over_and_over_beside_a_stopped_stage_stays_within_the_limit() -> None:
    async def scenario() -> None:
        harness = await _stopped_harness("denoise", max_sessions=1)
        sinks = [harness.send(1, chunk=1)]
        for _ in range(5):
            await asyncio.sleep(5)
            sinks.append(harness.send(1, start=True))
        for sink in sinks:
            await sink.done()
        statuses = [sink.statuses for sink in sinks]
        assert statuses == [["SESSION_FAILED"]] + [["SESSION_LIMIT"]] * 5
        await asyncio.sleep(1)
        assert len(harness.service.table) == 1
        harness.stages.go_on("denoise")
        await asyncio.sleep(5)
        await harness.idle()

    run(scenario())


def test_nothing_is_lost_of_a_call_that_is_answered_in_time() -> None:
    async def scenario() -> None:
        harness = await _stopped_harness("denoise")
        sink = harness.send(1, chunk=1)
        await asyncio.sleep(29)
        harness.stages.go_on("denoise")
        assert await sink.done() == ["FRAMES"] * 3
        assert await harness.send(1, end=True).done() == ["CLOSED"]
        await harness.idle()

    run(scenario())


def test_other_sessions_go_on_while_one_waits_for_a_stopped_worker() -> None:
    """With several workers a stage, one that stopped holds only its own sessions."""

    class Stages(FakeStages):
        victim: Session | None = None

        async def _decode_step(self, session: Session, *arguments: Any) -> Any:
            if session is self.victim:
                await asyncio.sleep(1e3)
            return await super()._decode_step(session, *arguments)

    async def scenario() -> None:
        stages = Stages()
        harness = ServiceHarness(stages, stage_timeout_seconds=30)
        await asyncio.gather(*(harness.send(n, start=True).done() for n in (1, 2)))
        stages.victim = harness.service.table.find(1)
        stages.once_stopped.add("decode")
        stuck = harness.send(1, chunk=0)
        for chunk in range(6):
            assert await harness.send(2, chunk=chunk).done() == ["FRAMES"] * 3
        assert await stuck.done() == ["STAGE_TIMEOUT"]
        await asyncio.sleep(1e3)
        await harness.idle()

    run(scenario())
