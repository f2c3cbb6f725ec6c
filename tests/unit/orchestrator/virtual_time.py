"""Clocks that jump, for event loops and for what sleeps, so that tests never wait."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class Clock:
    """Stands for the module `time`: sleeping takes no time, however slow the machine is."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class _JumpingSelector(selectors.DefaultSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout == 0:  # callbacks are ready: time does not go on, and nothing is waited for
            return []
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("deadlock: every task waits and no timer is set")
            self.now += max(timeout, 0)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """`asyncio.sleep` takes no real time; a deadlock raises instead of hanging."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def stall(self, seconds: float) -> None:
        self._jumping.now += seconds


def stand_still(seconds: float) -> None:
    """Let time go on while nothing runs, as when the machine stalls."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.stall(seconds)


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run `work` to its end on a fresh loop with virtual time."""
    loop = VirtualTimeLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()
