"""Workers that stop answering: who waits for them, for how long, and what is left of it."""

from __future__ import annotations

import asyncio

import pytest

from lingbot_triton.orchestrator.session import Session
from tests.unit.orchestrator.fakes import FakeStages
from tests.unit.orchestrator.house import House
from tests.unit.orchestrator.virtual_time import run


async def _stopped_house(stage: str, **settings: int | float) -> House:
    """A house with session 1 after its first chunk, whose `stage` then stops answering."""
    house = House(FakeStages(), stage_timeout_seconds=30, **settings)
    assert await house.send(1, start=True, chunk=0).done() == ["READY"] + ["FRAMES"] * 3
    await asyncio.sleep(20)
    house.stages.stop(stage)
    return house


@pytest.mark.parametrize("stage", ["condition", "denoise", "decode"])
def test_a_stopped_stage_times_out_and_lets_go_when_it_goes_on(stage: str) -> None:
    async def scenario() -> None:
        house = await _stopped_house(stage, max_sessions=2)
        started = house.clock()
        # Two conditions are there already, so a stopped encoder is missed at the third chunk.
        chunk, last = 1, "FRAMES"
        while last == "FRAMES":
            last = (await house.send(1, chunk=chunk).done())[-1]
            chunk += 1
        assert last == "STAGE_TIMEOUT"
        assert 30 <= house.clock() - started < 45
        assert await house.send(1, end=True).done() == ["SESSION_FAILED"]
        assert house.clock() - started < 70, "END does not wait for the stopped stage"
        assert len(house.service.table) == 1, "its worker still holds the session"
        house.stages.go_on(stage)
        await asyncio.sleep(5)
        assert len(house.service.table) == 0
        await house.idle()

    run(scenario())


def test_a_session_ended_beside_a_stopped_stage_gives_its_id_free() -> None:
    async def scenario() -> None:
        house = await _stopped_house("decode")
        assert await house.send(1, end=True).done() == ["CLOSED"]
        assert await house.send(1, start=True).done() == ["STAGE_TIMEOUT"]
        assert len(house.service.table) == 2
        house.stages.go_on("decode")
        assert await house.send(1, start=True, chunk=0).done() == ["READY"] + ["FRAMES"] * 3
        await house.idle()

    run(scenario())


def test_sessions_that_a_stopped_stage_holds_count_until_it_lets_go() -> None:
    async def scenario() -> None:
        house = await _stopped_house("denoise", max_sessions=2)
        assert await house.send(1, end=True).done() == ["CLOSED"]
        assert await house.send(2, start=True).done() == ["STAGE_TIMEOUT"]
        assert await house.send(3, start=True).done() == ["SESSION_LIMIT"]
        house.stages.go_on("denoise")
        await asyncio.sleep(5)
        assert await house.send(3, start=True, chunk=0).done() == ["READY"] + ["FRAMES"] * 3
        await house.idle()

    run(scenario())


def test_starting_over_and_over_beside_a_stopped_stage_stays_within_the_limit() -> None:
    async def scenario() -> None:
        house = await _stopped_house("denoise", max_sessions=1)
        replies = [house.send(1, chunk=1)]
        for _ in range(5):
            await asyncio.sleep(5)
            replies.append(house.send(1, start=True))
        for reply in replies:
            await reply.done()
        statuses = [reply.statuses for reply in replies]
        assert statuses == [["SESSION_FAILED"]] + [["SESSION_LIMIT"]] * 5
        await asyncio.sleep(1)
        assert len(house.service.table) == 1
        house.stages.go_on("denoise")
        await asyncio.sleep(5)
        await house.idle()

    run(scenario())


def test_nothing_is_lost_of_a_call_that_is_answered_in_time() -> None:
    async def scenario() -> None:
        house = await _stopped_house("denoise")
        reply = house.send(1, chunk=1)
        await asyncio.sleep(29)
        house.stages.go_on("denoise")
        assert await reply.done() == ["FRAMES"] * 3
        assert await house.send(1, end=True).done() == ["CLOSED"]
        await house.idle()

    run(scenario())


def test_other_sessions_go_on_while_one_waits_for_a_stopped_worker() -> None:
    """With several workers a stage, one that stopped holds only its own sessions."""

    class Stages(FakeStages):
        victim: Session | None = None

        async def decode(self, session: Session, *arguments: object) -> object:
            if session is self.victim:
                await asyncio.sleep(1e3)
            return await super().decode(session, *arguments)  # type: ignore[arg-type]

    async def scenario() -> None:
        stages = Stages()
        house = House(stages, stage_timeout_seconds=30)
        await asyncio.gather(*(house.send(n, start=True).done() for n in (1, 2)))
        stages.victim = house.service.table.find(1)
        stages.once_stopped.add("decode")
        stuck = house.send(1, chunk=0)
        for chunk in range(6):
            assert await house.send(2, chunk=chunk).done() == ["FRAMES"] * 3
        assert await stuck.done() == ["STAGE_TIMEOUT"]
        await asyncio.sleep(1e3)
        await house.idle()

    run(scenario())
