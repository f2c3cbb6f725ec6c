"""Notices dead worker processes, ends the sessions that they held and reloads them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from lingbot_triton import metrics
from lingbot_triton.errors import ShuttingDown, StageDead, StageFailed, StageTimeout, WorldError
from lingbot_triton.orchestrator.interfaces import Stages, Workers
from lingbot_triton.orchestrator.session import Session
from lingbot_triton.orchestrator.table import SessionTable
from lingbot_triton.stage import STAGES, find_stage

log = logging.getLogger(__name__)

WATCH_SECONDS = 2.0
PING_SECONDS = 10.0
"""After so long a worker counts as busy, or stopped: a dead one is known within two seconds."""

DRAIN_POLL_SECONDS = 0.25
RELOAD_DELAYS = (0.0, 1.0, 5.0, 20.0)
"""Seconds before each attempt to reload a worker; after the last one it stays unavailable."""


class Recovery:
    """Which stages are unavailable, and why."""

    def __init__(
        self,
        stages: Stages,
        workers: Workers,
        table: SessionTable,
        observer: metrics.Observer,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._stages = stages
        self._workers = workers
        self._table = table
        self._observer = observer
        self._spawn = spawn
        self._recovering: set[str] = set()
        self.unavailable: dict[str, str] = {}
        """Stages that take no new session, each with the sentence that says why."""

    def check(self) -> None:
        """Raise StageFailed while a stage is unavailable."""
        for sentence in self.unavailable.values():
            raise StageFailed(sentence)

    def on_worker_death(self, stage: str) -> bool:
        """A call found a worker of `stage` dead; whether another one takes sessions meanwhile."""
        if stage not in self._recovering and stage not in self.unavailable:
            self._recovering.add(stage)
            self.unavailable[stage] = (
                f"{stage} has died and is being reloaded; try again in some seconds"
            )
            self._spawn(self._recover(stage))
        return stage not in self.unavailable

    async def watch(self) -> None:
        """Find workers that died while they were idle; runs until it is cancelled."""
        pings: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                await asyncio.sleep(WATCH_SECONDS)
                for stage in (record.name for record in STAGES):
                    # A worker that is busy, or stopped, is asked once, not again and again.
                    if stage not in self.unavailable and (
                        stage not in pings or pings[stage].done()
                    ):
                        pings[stage] = asyncio.ensure_future(self._ping(stage))
        finally:
            for ping in pings.values():
                ping.cancel()

    async def _ping(self, stage: str) -> None:
        try:
            await self._stages.ping(find_stage(stage))
        except StageDead:
            self.on_worker_death(stage)
        except ShuttingDown:
            pass
        except WorldError as error:
            log.warning("%s does not respond: %s", stage, error)
        except Exception:
            log.exception("asking %s met an internal error", stage)

    async def _recover(self, stage: str) -> None:
        log.error("%s has died: ending the sessions it held", stage)
        try:
            if await self._fail_lost_sessions(stage):
                # Other processes of the stage hold sessions, which a reload would take away.
                reason = self.unavailable.pop(stage)
                await self._wait_until_drained(stage)
                self.unavailable[stage] = reason
            self._observer.set(metrics.UNAVAILABLE, 1, stage)
            await self._wait_until_drained(stage)
            await self._reload(stage)
        finally:
            self._recovering.discard(stage)
            self._observer.set(metrics.UNAVAILABLE, stage in self.unavailable, stage)
        await self._workers.remove_orphaned_memory()

    async def _wait_until_drained(self, stage: str) -> None:
        """Wait until no session is held at the stage; sessions whose worker dies meanwhile fail."""
        while holders := self._holders(stage):
            if self._workers.all_dead(stage):
                for session in holders:
                    session.fail(_worker_died(stage))
            await asyncio.sleep(DRAIN_POLL_SECONDS)

    def _holders(self, stage: str) -> list[Session]:
        return [session for session in self._table.live if stage in session.held_stages]

    async def _fail_lost_sessions(self, stage: str) -> bool:
        """Fail the sessions whose worker is dead; whether any session has another one."""
        holders = self._holders(stage)
        if self._workers.all_dead(stage):
            # Asking takes long when all who hold a session ask at once, and says nothing new.
            for session in holders:
                session.fail(_worker_died(stage))
            return False
        return any(await asyncio.gather(*(self._lives(stage, session) for session in holders)))

    async def _lives(self, stage: str, session: Session) -> bool:
        """Whether the worker that holds `session` lives; where it does not, the session fails."""
        if calls := session.calls.pending_at(stage):
            await asyncio.wait(calls, timeout=PING_SECONDS)
        if session.calls.overdue_at(stage) or session.calls.pending_at(stage):
            return True
        if session.end.failure is not None or session.end.task is not None:
            return False
        try:
            ping = self._stages.ping(find_stage(stage), session)
            await session.calls.run(stage, ping, PING_SECONDS)
        except (StageTimeout, ShuttingDown):
            return True
        except WorldError:
            session.fail(_worker_died(stage))
            return False
        return True

    async def _reload(self, stage: str) -> None:
        for attempt, delay in enumerate(RELOAD_DELAYS, 1):
            await asyncio.sleep(delay)
            try:
                await self._workers.reload(stage)
            except StageFailed as error:
                self.unavailable[stage] = f"{stage} has died and could not be reloaded: {error}"
                log.error("attempt %d: %s", attempt, self.unavailable[stage])
            else:
                del self.unavailable[stage]
                self._observer.add(metrics.RESTARTS, 1, stage)
                log.warning("%s was reloaded and takes sessions again", stage)
                return


def _worker_died(stage: str) -> StageDead:
    return StageDead(stage, f"the {stage} worker that held the session has died")
