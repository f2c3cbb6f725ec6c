"""A session's outbox: where its frames lie from their decoding until they are delivered."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable

from lingbot_triton.orchestrator.requests import FramePart, Response

Respond = Callable[[Response, bool], Awaitable[None]]
"""Sends a response to a request of the client; the flag says that it is its event's last one."""


class Outbox:
    """Frames belong to the session; the stream of a chunk's request is that chunk's reader."""

    def __init__(self) -> None:
        self._readers: dict[int, Respond] = {}
        self._parts: deque[FramePart] = deque()

    def attach(self, chunk_index: int, reader: Respond) -> None:
        """Deliver the parts of a chunk to `reader`."""
        self._readers[chunk_index] = reader

    def put(self, part: FramePart) -> None:
        """Add a part, the newest one, to what is to be delivered."""
        self._parts.append(part)

    @property
    def oldest(self) -> FramePart:
        """The part that is delivered next."""
        return self._parts[0]

    async def deliver(self) -> None:
        """Deliver the oldest part to its chunk's reader; then it is dropped."""
        part = self.oldest
        await self._readers[part.chunk_index](part.response(), part.last)
        self._parts.popleft()
        if part.last:
            del self._readers[part.chunk_index]

    def discard(self) -> None:
        """Drop everything: the session is over."""
        self._parts.clear()
        self._readers.clear()
