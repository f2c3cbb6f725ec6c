"""A session's calls to stages: those that are awaited, and those that timed out unanswered."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable
from typing import Any, TypeVar

from lingbot_triton.errors import StageTimeout

Result = TypeVar("Result")


class CallLedger:
    """A call cannot be taken back from a worker, so each is on the books until it is answered."""

    def __init__(self) -> None:
        self.pending: dict[asyncio.Future[Any], str] = {}
        """Calls that are awaited, each with its stage."""
        self.overdue: dict[asyncio.Future[Any], str] = {}
        """Calls that timed out, each with the stage that still has to answer it."""

    def __len__(self) -> int:
        return len(self.pending) + len(self.overdue)

    def pending_at(self, stage: str) -> list[asyncio.Future[Any]]:
        """Calls to `stage` that are awaited."""
        return [call for call, name in self.pending.items() if name == stage]

    def overdue_at(self, stage: str) -> list[asyncio.Future[Any]]:
        """Calls to `stage` that timed out and were not answered yet."""
        return [call for call, name in self.overdue.items() if name == stage]

    async def run(
        self, stage: str, call: Awaitable[Result], timeout: float | None = None
    ) -> Result:
        """Await a call to `stage`, which goes on when the awaiting task is cancelled.

        Raises StageTimeout after `timeout` seconds; a result that comes later is dropped.
        """
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(call)
        outcome: asyncio.Future[Result] = loop.create_future()
        self.pending[outcome] = stage
        outcome.add_done_callback(self._on_outcome)
        timer = None
        if timeout is not None:
            error = StageTimeout(f"{stage} took longer than {timeout:g} s")
            timer = loop.call_later(timeout, self._on_timeout, task, outcome, stage, error)
        task.add_done_callback(functools.partial(_resolve, outcome, timer))
        return await asyncio.shield(outcome)

    def _on_timeout(
        self,
        task: asyncio.Future[Any],
        outcome: asyncio.Future[Any],
        stage: str,
        error: StageTimeout,
    ) -> None:
        if not task.done():
            self.overdue[task] = stage
            task.add_done_callback(self._on_late_result)
            outcome.set_exception(error)

    def _on_outcome(self, outcome: asyncio.Future[Any]) -> None:
        del self.pending[outcome]
        if not outcome.cancelled():
            outcome.exception()  # marks it as retrieved when nothing awaits it any more

    def _on_late_result(self, task: asyncio.Future[Any]) -> None:
        del self.overdue[task]
        if not task.cancelled():
            task.exception()


def _resolve(
    outcome: asyncio.Future[Result],
    timer: asyncio.TimerHandle | None,
    task: asyncio.Future[Result],
) -> None:
    """Make a finished task's result its call's outcome, unless the call has timed out."""
    if timer is not None:
        timer.cancel()
    if outcome.done():
        return
    if task.cancelled():
        outcome.cancel()
    elif (error := task.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())
