"""A session's outbox: where its frames lie from their decoding until they are delivered."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable

from lingbot_triton.orchestrator.requests import FramePart

Reader = Callable[[FramePart], Awaitable[None]]
"""Sends one part to the client; returns when it was handed over."""


class Outbox:
    """Frames belong to the session; the stream of a chunk's request is that chunk's reader."""

    def __init__(self) -> None:
        self._readers: dict[int, Reader] = {}
        self._parts: deque[FramePart] = deque()

    def attach(self, chunk_index: int, reader: Reader) -> None:
        """Deliver the parts of a chunk to `reader`."""
        self._readers[chunk_index] = reader

    def put(self, part: FramePart) -> None:
        """Add a part, the newest one, to what is to be delivered."""
        self._parts.append(part)

    async def deliver(self) -> None:
        """Deliver the oldest part to its chunk's reader; then it is dropped."""
        part = self._parts[0]
        await self._readers[part.chunk_index](part)
        self._parts.popleft()
        if part.last:
            del self._readers[part.chunk_index]

    def discard(self) -> None:
        """Drop everything: the session is over."""
        self._parts.clear()
        self._readers.clear()
