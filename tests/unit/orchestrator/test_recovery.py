"""Dead workers: noticed, their sessions ended, reloaded; or new sessions told why not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lingbot_triton.errors import StageDead, StageFailed
from lingbot_triton.orchestrator.recovery import RELOAD_DELAYS, STAGES
from lingbot_triton.orchestrator.session import Session
from tests.unit.orchestrator.fakes import FakeStages
from tests.unit.orchestrator.house import House
from tests.unit.orchestrator.virtual_time import run


class Mortals(FakeStages):
    """Stages, each of one or more processes that may die; implements `recovery.Workers` too."""

    def __init__(self, processes: int = 1, explicit: bool = True) -> None:
        super().__init__()
        self.processes = processes
        self.explicit = explicit
        self.dead: set[tuple[str, int]] = set()
        self.reloads: list[str] = []
        self.tidied = 0
        self.order: list[str] = []

    def kill(self, stage: str, process: int = 0) -> None:
        self.dead.add((stage, process))

    async def _work(self, session: Session, name: str, index: int = 0) -> Any:
        seen = await super()._work(session, name, index)
        self._check(session, "denoise" if name == "commit" else name)
        return seen

    def _check(self, session: Session, stage: str) -> None:
        if session.epoch not in self.order:
            self.order.append(session.epoch)
        if (stage, self.order.index(session.epoch) % self.processes) in self.dead:
            raise StageDead(stage, f"the {stage} worker has died")

    async def ping(self, stage: str, session: Session | None = None) -> None:
        await asyncio.sleep(2)
        if session is not None:
            self._check(session, stage)
        elif (stage, 0) in self.dead:
            raise StageDead(stage, f"the {stage} worker has died")

    def extinct(self, stage: str) -> bool:
        return all((stage, process) in self.dead for process in range(self.processes))

    async def reload(self, stage: str) -> None:
        holders = [seen for seen in self.sessions.values() if stage in seen.open]
        assert all(stage in seen.closed for seen in holders if not self._lost(seen, stage))
        await asyncio.sleep(3)
        if not self.explicit:
            raise StageFailed("explicit model load / unload is not allowed")
        self.dead = {(name, process) for name, process in self.dead if name != stage}
        self.reloads.append(stage)

    async def tidy(self) -> None:
        await asyncio.sleep(2)
        self.tidied += 1

    def _lost(self, seen: Any, stage: str) -> bool:
        epoch = next(epoch for epoch, other in self.sessions.items() if other is seen)
        return (stage, self.order.index(epoch) % self.processes) in self.dead

    def check_released(self) -> None:
        """A dead worker is not asked to let go of anything."""


def _house(stages: Mortals) -> House:
    return House(stages, workers=stages)


@pytest.mark.parametrize("stage", STAGES)
def test_a_worker_that_dies_idle_ends_the_sessions_it_held_and_comes_back(stage: str) -> None:
    async def scenario() -> None:
        stages = Mortals()
        house = _house(stages)
        for session_id in (1, 2):
            await house.send(session_id, start=True, chunk=0).done()
        await asyncio.sleep(30)
        stages.kill(stage)
        await asyncio.sleep(3)
        refused = house.send(3, start=True)
        assert await refused.done() == ["STAGE_FAILED"]
        assert refused.answers[0].message == (
            f"{stage} has died and is being reloaded; try again in some seconds"
        )
        held = stage != "prompt"
        assert len(house.service.table) == (0 if held else 2)
        expected = ["SESSION_FAILED"] if held else ["FRAMES"] * 3
        for session_id in (1, 2):
            assert await house.send(session_id, chunk=1).done() == expected
        await asyncio.sleep(10)
        assert stages.reloads == [stage]
        assert stages.tidied == 1
        assert await house.send(3, start=True, chunk=0).done() == ["READY"] + ["FRAMES"] * 3
        await house.idle()

    run(scenario())


@pytest.mark.parametrize("stage", ["condition", "denoise", "decode"])
def test_a_worker_that_dies_at_work_answers_every_request_of_its_sessions(stage: str) -> None:
    async def scenario() -> None:
        stages = Mortals()
        house = _house(stages)
        await asyncio.gather(*(house.send(n, start=True).done() for n in (1, 2)))
        replies = [house.send(n, chunk=chunk) for n in (1, 2) for chunk in (0, 1)]
        stages.kill(stage)
        died = house.clock()
        replies += [house.send(n, chunk=chunk) for n in (1, 2) for chunk in (2, 2)]
        for reply in replies:
            assert (await reply.done())[-1] in ("STAGE_FAILED", "WINDOW_FULL", "FRAMES")
        assert "STAGE_FAILED" in [reply.statuses[-1] for reply in replies]
        while len(house.service.table):
            await asyncio.sleep(0.1)
        assert house.clock() - died < 15
        await asyncio.sleep(10)
        assert stages.reloads == [stage]
        await house.idle()

    run(scenario())


async def _one_of_two_dead() -> tuple[Mortals, House]:
    """Session 1 was on the process of denoise that has died, session 2 is on the other."""
    stages = Mortals(processes=2)
    house = _house(stages)
    for session_id in (1, 2):
        await house.send(session_id, start=True, chunk=0).done()
    await asyncio.sleep(30)
    stages.kill("denoise")
    assert await house.send(1, chunk=1).done() == ["STAGE_FAILED"]
    await asyncio.sleep(10)
    return stages, house


def test_sessions_on_another_process_go_on_and_the_reload_waits_for_them() -> None:
    async def scenario() -> None:
        stages, house = await _one_of_two_dead()
        for chunk in range(1, 7):
            assert await house.send(2, chunk=chunk).done() == ["FRAMES"] * 3
            assert stages.reloads == []
        assert await house.send(2, end=True).done() == ["CLOSED"]
        await asyncio.sleep(10)
        assert stages.reloads == ["denoise"]
        await house.idle()

    run(scenario())


def test_the_other_process_dies_too_while_its_sessions_are_waited_for() -> None:
    async def scenario() -> None:
        stages, house = await _one_of_two_dead()
        assert stages.reloads == []
        stages.kill("denoise", 1)
        await asyncio.sleep(15)  # session 2 says nothing, and is not waited for
        assert stages.reloads == ["denoise"]
        assert await house.send(2, chunk=1).done() == ["SESSION_FAILED"]
        assert await house.send(3, start=True, chunk=0).done() == ["READY"] + ["FRAMES"] * 3
        await house.idle()

    run(scenario())


def test_without_explicit_control_new_sessions_are_told_why() -> None:
    async def scenario() -> None:
        stages = Mortals(explicit=False)
        house = _house(stages)
        await house.send(1, start=True, chunk=0).done()
        stages.kill("decode")
        await asyncio.sleep(15 + sum(RELOAD_DELAYS) + 4 * len(RELOAD_DELAYS))
        for _ in range(2):
            refused = house.send(2, start=True)
            assert await refused.done() == ["STAGE_FAILED"]
            assert refused.answers[0].message == (
                "decode has died and could not be reloaded: "
                "explicit model load / unload is not allowed"
            )
            await asyncio.sleep(100)
        assert len(house.service.table) == 0
        await house.idle()

    run(scenario())


def test_a_worker_that_dies_twice_comes_back_twice() -> None:
    async def scenario() -> None:
        stages = Mortals()
        house = _house(stages)
        for session_id in (1, 2):
            await house.send(session_id, start=True, chunk=0).done()
            stages.kill("condition")
            await asyncio.sleep(20)
            assert stages.reloads == ["condition"] * session_id
        await house.idle()

    run(scenario())


def test_a_stopped_worker_is_not_taken_for_dead() -> None:
    async def scenario() -> None:
        class Stopped(Mortals):
            asked = 0

            async def ping(self, stage: str, session: Session | None = None) -> None:
                if stage == "denoise":
                    self.asked += 1
                    await asyncio.sleep(1e4)
                await super().ping(stage, session)

        stages = Stopped()
        house = _house(stages)
        await house.send(1, start=True, chunk=0).done()
        await asyncio.sleep(200)
        assert stages.asked == 1, "a worker that does not answer is not asked again and again"
        assert await house.send(1, chunk=1).done() == ["FRAMES"] * 3
        await house.idle()

    run(scenario())


def test_many_sessions_that_ask_a_dead_worker_do_not_keep_it_from_coming_back() -> None:
    """Triton answers the calls to a dead worker one after another, a second for each."""

    async def scenario() -> None:
        class Queueing(Mortals):
            queue = asyncio.Lock()

            async def ping(self, stage: str, session: Session | None = None) -> None:
                async with self.queue:
                    await super().ping(stage, session)

        stages = Queueing()
        house = _house(stages)
        for session_id in range(8):
            await house.send(session_id, start=True, chunk=0).done()
        stages.kill("decode")
        await asyncio.sleep(40)
        assert stages.reloads == ["decode"]
        assert await house.send("new", start=True).done() == ["READY"]
        await house.idle()

    run(scenario())
