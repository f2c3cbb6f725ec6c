"""A session's two cursors: controls in strict order, and a bounded window of conditions.

Nothing here knows torch, Triton or a clock. Everything runs on one event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any

from lingbot_triton.errors import Duplicate, LengthLimit, OutOfOrder, WindowFull


@dataclass(frozen=True, eq=False)
class Condition:
    """A chunk's encoded condition; `steady` says that every later one is equal to it."""

    tensor: Any
    steady: bool = False
    bytes: int = 0


@dataclass(frozen=True, eq=False)
class Latent:
    """A chunk's clean latent and what each denoising step took."""

    tensor: Any
    step_seconds: tuple[float, ...] = ()


class ControlCursor:
    """Admits controls in strict order, at most `window` of them ahead of their denoise."""

    def __init__(self, window: int, last: int | None) -> None:
        self.window = window
        self.last = last
        self.next_index = 0
        self.waiting = 0

    def admit(self, index: int) -> None:
        """Take the control of chunk `index`, or raise and leave everything as it was."""
        if index < self.next_index:
            raise Duplicate(f"chunk {index} was admitted before; the next is {self.next_index}")
        if index > self.next_index:
            raise OutOfOrder(f"chunk {index} is not next; the next is {self.next_index}")
        if self.last is not None and index > self.last:
            raise LengthLimit(f"chunk {index} is past the session's last chunk, {self.last}")
        if self.waiting >= self.window:
            raise WindowFull(
                f"chunk {index} came too early: {self.waiting} controls wait for their denoise, "
                f"at most {self.window} may"
            )
        self.next_index += 1
        self.waiting += 1

    def start(self) -> None:
        """The oldest waiting control's denoise starts."""
        self.waiting -= 1


class ConditionWindow:
    """Conditions of one session: requested, held and in use together never exceed the depth.

    At depth 0 nothing is encoded ahead: a condition is requested when its control asks for it.
    Once a condition is steady it serves every later chunk and nothing is requested any more.
    """

    def __init__(self, depth: int, last: int | None) -> None:
        self.depth = depth
        self.last = last
        self.next_index = 0
        self.outstanding = 0
        self.steady: Condition | None = None
        self._requested: deque[asyncio.Future[Condition]] = deque()

    @property
    def may_request(self) -> bool:
        """Whether the next condition may be requested ahead of its control."""
        ended = self.last is not None and self.next_index > self.last
        return self.outstanding < self.depth and self.steady is None and not ended

    def request(self) -> tuple[int, asyncio.Future[Condition]]:
        """Reserve room for the next condition; the caller fulfils the future."""
        index = self.next_index
        self.next_index += 1
        self.outstanding += 1
        future: asyncio.Future[Condition] = asyncio.get_running_loop().create_future()
        self._requested.append(future)
        return index, future

    def arrived(self, future: asyncio.Future[Condition], condition: Condition) -> None:
        """The encoder answered a request."""
        if condition.steady:
            self.steady = condition
        if not future.done():
            future.set_result(condition)

    async def take(self) -> Condition:
        """The next chunk's condition, waiting for the encoder where it is not there yet."""
        if self.serves_steady:
            assert self.steady is not None
            self.outstanding += 1
            return self.steady
        return await self._requested.popleft()

    @property
    def serves_steady(self) -> bool:
        """Whether `take` gives the steady condition once more."""
        return not self._requested and self.steady is not None

    @property
    def empty(self) -> bool:
        """Whether `take` would find neither a request nor a steady condition."""
        return not self._requested and self.steady is None

    @property
    def held_bytes(self) -> int:
        """Bytes of the conditions that wait for their control, the steady one included."""
        conditions = [future.result() for future in self._requested if _arrived(future)]
        if self.steady is not None and self.steady not in conditions:
            conditions.append(self.steady)
        return sum(condition.bytes for condition in conditions)

    def release(self) -> None:
        """The denoise that used the oldest taken condition has finished."""
        self.outstanding -= 1

    def discard(self) -> None:
        """Drop everything; a task that waits in `take` is woken by its own cancellation."""
        for future in self._requested:
            future.cancel()
        self._requested.clear()
        self.steady = None
        self.outstanding = 0


def _arrived(future: asyncio.Future[Condition]) -> bool:
    return future.done() and not future.cancelled()
