"""Worker processes die; this notices it, ends the sessions they held and brings them back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from lingbot_triton import metrics
from lingbot_triton.errors import ShuttingDown, StageDead, StageFailed, StageTimeout, WorldError
from lingbot_triton.orchestrator.session import Session, SessionTable

log = logging.getLogger(__name__)

STAGES = ("prompt", "condition", "denoise", "decode")
WATCH_SECONDS = 2.0
PING_SECONDS = 10.0
"""After so long a worker is taken for busy, or stopped: a dead one is known in two seconds."""

DRAIN_SECONDS = 0.25
RELOAD_DELAYS = (0.0, 1.0, 5.0, 20.0)
"""Seconds before each attempt to reload a worker; after the last one the stage stays away."""


class Workers(Protocol):
    """The worker processes behind the stages."""

    async def ping(self, stage: str, session: Session | None = None) -> None:
        """Return if the process that holds `session` (or any) answers; raises StageDead."""

    def extinct(self, stage: str) -> bool:
        """Whether the stage is known to have no living process at all."""

    async def reload(self, stage: str) -> None:
        """Start the stage's processes anew; raises StageFailed that says why it cannot be."""

    async def tidy(self) -> None:
        """Remove what dead processes left behind."""


class Recovery:
    """Which stages are away, and why."""

    def __init__(
        self,
        workers: Workers,
        table: SessionTable,
        observer: metrics.Observer,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._workers = workers
        self._table = table
        self._observer = observer
        self._spawn = spawn
        self._recovering: set[str] = set()
        self.away: dict[str, str] = {}
        """Stages that take no new session, each with the sentence that says why."""

    def check(self) -> None:
        """Raise StageFailed while a stage is away."""
        for sentence in self.away.values():
            raise StageFailed(sentence)

    def died(self, stage: str) -> bool:
        """A call found a worker of `stage` dead; whether another one takes sessions meanwhile."""
        if stage not in self._recovering and stage not in self.away:
            self._recovering.add(stage)
            self.away[stage] = f"{stage} has died and is being reloaded; try again in some seconds"
            self._spawn(self._recover(stage))
        return stage not in self.away

    async def watch(self) -> None:
        """Find workers that died while nobody called them; runs until it is cancelled."""
        pings: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                await asyncio.sleep(WATCH_SECONDS)
                for stage in STAGES:
                    # A worker that is busy, or stopped, is asked once, not again and again.
                    if stage not in self.away and (stage not in pings or pings[stage].done()):
                        pings[stage] = asyncio.ensure_future(self._ping(stage))
        finally:
            for ping in pings.values():
                ping.cancel()

    async def _ping(self, stage: str) -> None:
        try:
            await self._workers.ping(stage)
        except StageDead:
            self.died(stage)
        except ShuttingDown:
            pass
        except WorldError as error:
            log.warning("%s does not answer: %s", stage, error)
        except Exception:
            log.exception("asking %s met an internal error", stage)

    async def _recover(self, stage: str) -> None:
        log.error("%s has died: ending the sessions it held", stage)
        try:
            if await self._end_lost(stage):
                # Other processes of the stage hold sessions, which a reload would take away.
                reloading = self.away.pop(stage)
                await self._released(stage)
                self.away[stage] = reloading
            self._observer.set(metrics.UNAVAILABLE, 1, stage)
            await self._released(stage)
            await self._reload(stage)
        finally:
            self._recovering.discard(stage)
            self._observer.set(metrics.UNAVAILABLE, stage in self.away, stage)
        await self._workers.tidy()

    async def _released(self, stage: str) -> None:
        """Wait until no session holds anything at the stage; who lost it meanwhile fails."""
        while holders := self._holders(stage):
            if self._workers.extinct(stage):
                for session in holders:
                    session.fail(_lost(stage))
            await asyncio.sleep(DRAIN_SECONDS)

    def _holders(self, stage: str) -> list[Session]:
        return [session for session in self._table.live if stage in session.stages_open]

    async def _end_lost(self, stage: str) -> bool:
        """Fail the sessions whose worker is dead; whether any session has another one."""
        holders = self._holders(stage)
        if self._workers.extinct(stage):
            # Asking takes long when all who hold a session ask at once, and says nothing new.
            for session in holders:
                session.fail(_lost(stage))
            return False
        return any(await asyncio.gather(*(self._lives(stage, session) for session in holders)))

    async def _lives(self, stage: str, session: Session) -> bool:
        """Whether the worker that holds `session` lives; where it does not, the session fails."""
        if calls := session.calls_at(stage):
            await asyncio.wait(calls, timeout=PING_SECONDS)
        if session.late_at(stage) or session.calls_at(stage):
            return True
        if session.failure is not None or session.ending is not None:
            return False
        try:
            await session.call(stage, self._workers.ping(stage, session), PING_SECONDS)
        except (StageTimeout, ShuttingDown):
            return True
        except WorldError:
            session.fail(_lost(stage))
            return False
        return True

    async def _reload(self, stage: str) -> None:
        for attempt, delay in enumerate(RELOAD_DELAYS, 1):
            await asyncio.sleep(delay)
            try:
                await self._workers.reload(stage)
            except StageFailed as error:
                self.away[stage] = f"{stage} has died and could not be reloaded: {error}"
                log.error("attempt %d: %s", attempt, self.away[stage])
            else:
                del self.away[stage]
                self._observer.add(metrics.RESTARTS, 1, stage)
                log.warning("%s was reloaded and takes sessions again", stage)
                return


def _lost(stage: str) -> StageDead:
    return StageDead(stage, f"the {stage} worker that held the session has died")
