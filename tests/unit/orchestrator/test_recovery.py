"""Dead workers: noticed, their sessions ended, reloaded; or new sessions told why not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lingbot_triton.errors import StageDead, StageFailed
from lingbot_triton.orchestrator.recovery import RELOAD_DELAYS
from lingbot_triton.orchestrator.session import Session
from lingbot_triton.stage import STAGES, Stage
from tests.unit.orchestrator.fakes import FakeStages
from tests.unit.orchestrator.harness import ServiceHarness
from tests.unit.orchestrator.virtual_time import run


class MortalStages(FakeStages):
    """Stages, each of one or more processes that may die; implements `interfaces.Workers` too."""

    def __init__(self, processes: int = 1, explicit: bool = True) -> None:
        super().__init__()
        self.processes = processes
        self.explicit = explicit
        self.dead: set[tuple[str, int]] = set()
        self.reloads: list[str] = []
        self.cleaned = 0
        self.order: list[str] = []

    def kill(self, stage: str, process: int = 0) -> None:
        self.dead.add((stage, process))

    async def _work(self, session: Session, label: str, index: int = 0) -> Any:
        seen = await super()._work(session, label, index)
        self._check(session, "denoise" if label == "commit" else label)
        return seen

    def _check(self, session: Session, stage: str) -> None:
        if session.correlation_id not in self.order:
            self.order.append(session.correlation_id)
        if (stage, self.order.index(session.correlation_id) % self.processes) in self.dead:
            raise StageDead(stage, f"the {stage} worker has died")

    async def ping(self, stage: Stage, session: Session | None = None) -> None:
        await asyncio.sleep(2)
        if session is not None:
            self._check(session, stage.name)
        elif (stage.name, 0) in self.dead:
            raise StageDead(stage.name, f"the {stage.name} worker has died")

    def all_dead(self, stage: str) -> bool:
        return all((stage, process) in self.dead for process in range(self.processes))

    async def reload(self, stage: str) -> None:
        holders = [seen for seen in self.sessions.values() if stage in seen.open]
        assert all(stage in seen.closed for seen in holders if not self._lost(seen, stage))
        await asyncio.sleep(3)
        if not self.explicit:
            raise StageFailed("explicit model load / unload is not allowed")
        self.dead = {(name, process) for name, process in self.dead if name != stage}
        self.reloads.append(stage)

    async def remove_orphaned_memory(self) -> None:
        await asyncio.sleep(2)
        self.cleaned += 1

    def _lost(self, seen: Any, stage: str) -> bool:
        correlation_id = next(
            correlation_id for correlation_id, other in self.sessions.items() if other is seen
        )
        return (stage, self.order.index(correlation_id) % self.processes) in self.dead

    def check_released(self) -> None:
        """A dead worker is not asked to let go of anything."""


def _harness(stages: MortalStages) -> ServiceHarness:
    return ServiceHarness(stages, workers=stages)


@pytest.mark.parametrize("stage", [stage.name for stage in STAGES])
def test_a_worker_that_dies_idle_ends_the_sessions_it_held_and_comes_back(stage: str) -> None:
    async def scenario() -> None:
        stages = MortalStages()
        harness = _harness(stages)
        for session_id in (1, 2):
            await harness.send(session_id, start=True, chunk=0).done()
        await asyncio.sleep(30)
        stages.kill(stage)
        await asyncio.sleep(3)
        refused = harness.send(3, start=True)
        assert await refused.done() == ["STAGE_FAILED"]
        assert refused.responses[0].message == (
            f"{stage} has died and is being reloaded; try again in some seconds"
        )
        held = stage != "prompt"
        assert len(harness.service.table) == (0 if held else 2)
        expected = ["SESSION_FAILED"] if held else ["FRAMES"] * 3
        for session_id in (1, 2):
            assert await harness.send(session_id, chunk=1).done() == expected
        await asyncio.sleep(10)
        assert stages.reloads == [stage]
        assert stages.cleaned == 1
        assert await harness.send(3, start=True, chunk=0).done() == ["READY"] + ["FRAMES"] * 3
        await harness.idle()

    run(scenario())


@pytest.mark.parametrize("stage", ["condition", "denoise", "decode"])
def test_a_worker_that_dies_at_work_answers_every_request_of_its_sessions(stage: str) -> None:
    async def scenario() -> None:
        stages = MortalStages()
        harness = _harness(stages)
        await asyncio.gather(*(harness.send(n, start=True).done() for n in (1, 2)))
        sinks = [harness.send(n, chunk=chunk) for n in (1, 2) for chunk in (0, 1)]
        stages.kill(stage)
        died = harness.clock()
        sinks += [harness.send(n, chunk=chunk) for n in (1, 2) for chunk in (2, 2)]
        for sink in sinks:
            assert (await sink.done())[-1] in ("STAGE_FAILED", "WINDOW_FULL", "FRAMES")
        assert "STAGE_FAILED" in [sink.statuses[-1] for sink in sinks]
        while len(harness.service.table):
            await asyncio.sleep(0.1)
        assert harness.clock() - died < 15
        await asyncio.sleep(10)
        assert stages.reloads == [stage]
        await harness.idle()

    run(scenario())


async def _one_of_two_dead() -> tuple[MortalStages, ServiceHarness]:
    """Session 1 was on the process of denoise that has died, session 2 is on the other."""
    stages = MortalStages(processes=2)
    harness = _harness(stages)
    for session_id in (1, 2):
        await harness.send(session_id, start=True, chunk=0).done()
    await asyncio.sleep(30)
    stages.kill("denoise")
    assert await harness.send(1, chunk=1).done() == ["STAGE_FAILED"]
    await asyncio.sleep(10)
    return stages, harness


def test_sessions_on_another_process_go_on_and_the_reload_waits_for_them() -> None:
    async def scenario() -> None:
        stages, harness = await _one_of_two_dead()
        for chunk in range(1, 7):
            assert await harness.send(2, chunk=chunk).done() == ["FRAMES"] * 3
            assert stages.reloads == []
        assert await harness.send(2, end=True).done() == ["CLOSED"]
        await asyncio.sleep(10)
        assert stages.reloads == ["denoise"]
        await harness.idle()

    run(scenario())


def test_the_other_process_dies_too_while_its_sessions_are_waited_for() -> None:
    async def scenario() -> None:
        stages, harness = await _one_of_two_dead()
        assert stages.reloads == []
        stages.kill("denoise", 1)
        await asyncio.sleep(15)  # session 2 says nothing, and is not waited for
        assert stages.reloads == ["denoise"]
        assert await harness.send(2, chunk=1).done() == ["SESSION_FAILED"]
        assert await harness.send(3, start=True, chunk=0).done() == ["READY"] + ["FRAMES"] * 3
        await harness.idle()

    run(scenario())


def test_without_explicit_control_new_sessions_are_told_why() -> None:
    async def scenario() -> None:
        stages = MortalStages(explicit=False)
        harness = _harness(stages)
        await harness.send(1, start=True, chunk=0).done()
        stages.kill("decode")
        await asyncio.sleep(15 + sum(RELOAD_DELAYS) + 4 * len(RELOAD_DELAYS))
        for _ in range(2):
            refused = harness.send(2, start=True)
            assert await refused.done() == ["STAGE_FAILED"]
            assert refused.responses[0].message == (
                "decode has died and could not be reloaded: "
                "explicit model load / unload is not allowed"
            )
            await asyncio.sleep(100)
        assert len(harness.service.table) == 0
        await harness.idle()

    run(scenario())


def test_a_worker_that_dies_twice_comes_back_twice() -> None:
    async def scenario() -> None:
        stages = MortalStages()
        harness = _harness(stages)
        for session_id in (1, 2):
            await harness.send(session_id, start=True, chunk=0).done()
            stages.kill("condition")
            await asyncio.sleep(20)
            assert stages.reloads == ["condition"] * session_id
        await harness.idle()

    run(scenario())


def test_a_stopped_worker_is_not_taken_for_dead() -> None:
    async def scenario() -> None:
        class Stopped(MortalStages):
            asked = 0

            async def ping(self, stage: Stage, session: Session | None = None) -> None:
                if stage.name == "denoise":
                    self.asked += 1
                    await asyncio.sleep(1e4)
                await super().ping(stage, session)

        stages = Stopped()
        harness = _harness(stages)
        await harness.send(1, start=True, chunk=0).done()
        await asyncio.sleep(200)
        assert stages.asked == 1, "a worker that does not response is not asked again and again"
        assert await harness.send(1, chunk=1).done() == ["FRAMES"] * 3
        await harness.idle()

    run(scenario())


def test_many_sessions_that_ask_a_dead_worker_do_not_keep_it_from_coming_back() -> None:
    """Triton answers the calls to a dead worker one after another, a second for each."""

    async def scenario() -> None:
        class Queueing(MortalStages):
            queue = asyncio.Lock()

            async def ping(self, stage: Stage, session: Session | None = None) -> None:
                async with self.queue:
                    await super().ping(stage, session)

        stages = Queueing()
        harness = _harness(stages)
        for session_id in range(8):
            await harness.send(session_id, start=True, chunk=0).done()
        stages.kill("decode")
        await asyncio.sleep(40)
        assert stages.reloads == ["decode"]
        assert await harness.send("new", start=True).done() == ["READY"]
        await harness.idle()

    run(scenario())
