"""One session: a world that goes on for as long as controls come."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any

from numpy.typing import ArrayLike

from lingbot_client import protocol
from lingbot_client.errors import Duplicate, SessionOver, WorldError
from lingbot_client.exchange import Call, Exchange, OnError
from lingbot_client.frames import Chunk, FramePart, PartReader
from lingbot_client.protocol import Response
from lingbot_client.transport import Transport

logger = logging.getLogger(__name__)

DEFAULT_CONTROL_WINDOW = 2
"""Controls that may wait for their first frames, where the server does not say."""


class WorldSession:
    """A session on the server; `WorldClient.open_session` makes one.

    Iterate over it for parts of chunks as they arrive, over `chunks()` for whole ones, or call
    `next_chunk()`. An error response to a control is raised there, in the control's place; the
    session goes on unless `error.ends_session`. All of it belongs to one event loop.
    """

    def __init__(
        self,
        transport: Transport,
        sequence_id: int | str,
        token: str,
        opening: dict[str, Any],
        close_timeout: float,
    ) -> None:
        self.id = sequence_id
        self.token = token
        self.ready: dict[str, Any] = {}
        """What the server said when it opened the session: geometry and limits."""
        self.summary: dict[str, Any] | None = None
        """What the server said when it closed the session; None if it did not."""
        self._transport = transport
        self._opening = opening
        self._close_timeout = close_timeout
        self._exchange: Exchange | None = None
        self._opened = asyncio.Event()
        self._sending = asyncio.Lock()
        self._next_index = 0
        self._unanswered: deque[Call] = deque()
        self._controls: asyncio.Queue[PartReader | None] = asyncio.Queue()  # None: no more follow
        self._reading: PartReader | None = None
        self._finished = False
        self._failure: WorldError | None = None

    async def __aenter__(self) -> WorldSession:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __aiter__(self) -> WorldSession:
        return self

    async def __anext__(self) -> FramePart:
        try:
            return await self.next_part()
        except SessionOver:
            raise StopAsyncIteration from None

    async def open(self) -> dict[str, Any]:
        """Open the session and return `ready`; raises the error that the server refused it with."""
        if self._exchange is not None or self._finished:
            raise RuntimeError("a session opens once")
        self._exchange = Exchange(self._transport.open_stream(), on_break=self._fail)
        try:
            call = self._call(start=True, **self._opening)
            response = await anext(call)
            self.ready = response.raise_for_status().info
        except BaseException as error:
            self._fail(error if isinstance(error, WorldError) else SessionOver("never opened"))
            await self.close()
            raise
        self._opened.set()
        return self.ready

    async def send(self, keys: str | Sequence[str] = "", *, poses: ArrayLike | None = None) -> int:
        """Send the next control, `keys` or `poses`, and return its index.

        `keys` are any of w a s d (move) and i j k l (turn), none to stand still; `poses` are
        camera-to-world matrices [n, 4, 4], one for each latent frame of a chunk, of which
        `ready["chunk_latent_frames"]` says the number. Waits until the session is open and the
        server has room. Raises SessionOver, what ended the session, or ValueError for poses of
        another shape.
        """
        control = protocol.control(keys, poses)
        await self._opened.wait()
        async with self._sending:
            await self._room()
            if self._finished:
                raise SessionOver("the session is finished: it takes no more controls")
            if self._failure is not None:
                raise self._failure
            protocol.check_pose_count(control, self.ready)
            index = self._next_index
            call = self._call(
                chunk_index=index,
                on_error=lambda error: self._refused(index, error),
                resumes=True,
                **control,
            )
            self._next_index += 1
            self._unanswered.append(call)
            self._controls.put_nowait(PartReader(call))
            return index

    def finish(self) -> None:
        """Send no more controls: iteration ends after the last chunk on its way."""
        self._finished = True
        self._controls.put_nowait(None)

    async def next_part(self) -> FramePart:
        """Wait for the next part of a chunk; raises SessionOver when none can follow."""
        return (await self._read()).parts[-1]

    async def next_chunk(self) -> Chunk:
        """Wait for the next whole chunk; raises SessionOver when none can follow."""
        while not (control := await self._read()).parts[-1].last:
            pass
        return Chunk.join(control.parts)

    async def chunks(self) -> AsyncIterator[Chunk]:
        """Iterate over whole chunks, until the session is finished or closed."""
        try:
            while True:
                yield await self.next_chunk()
        except SessionOver:
            return

    async def request(
        self, *, start: bool = False, end: bool = False, **inputs: Any
    ) -> list[Response]:
        """Send any request on this session and return its responses, error codes included.

        Inputs are the protocol's, as plain values or arrays; the token is added unless it is there.
        The session's own count of controls does not change. Raises TritonError, Cancelled and
        ConnectionFailed.
        """
        return await self._call(start=start, end=end, **inputs).collect()

    async def close(self) -> None:
        """End the session and wait for its summary, for `close_timeout` seconds at most."""
        self.finish()
        self._opened.set()
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        try:
            await asyncio.wait_for(self._end(exchange), self._close_timeout)
        except (WorldError, asyncio.TimeoutError) as error:
            logger.info("the server did not confirm the end of session %s: %r", self.id, error)
        finally:
            await exchange.close()

    async def _end(self, exchange: Exchange) -> None:
        inputs = {protocol.TOKEN: self.token}
        async for response in exchange.call(self.id, end=True, inputs=inputs, resumes=True):
            if response.status == protocol.CLOSED:
                self.summary = response.info

    def _call(
        self,
        *,
        start: bool = False,
        end: bool = False,
        on_error: OnError | None = None,
        resumes: bool = False,
        **inputs: Any,
    ) -> Call:
        if self._exchange is None:
            raise SessionOver("the session is not open")
        inputs = {protocol.TOKEN: self.token, **inputs}
        return self._exchange.call(
            self.id, start=start, end=end, inputs=inputs, on_error=on_error, resumes=resumes
        )

    async def _room(self) -> None:
        """Wait until the server can take a control: fewer than its window have no response yet."""
        window = self.ready.get("control_window", DEFAULT_CONTROL_WINDOW)
        while len(self._unanswered) >= window:
            await self._unanswered[0].first_response.wait()
            self._unanswered.popleft()

    async def _read(self) -> PartReader:
        """Read one more part; returns the control it belongs to."""
        while True:
            if self._reading is None:
                self._reading = await self._next_control()
            control = self._reading
            try:
                part = await control.next_part()
            except WorldError:
                self._reading = None
                raise
            if part is not None:
                return control
            self._reading = None

    async def _next_control(self) -> PartReader:
        control = await self._controls.get()
        if control is not None:
            return control
        self._controls.put_nowait(None)  # every later call finds the end again
        if self._failure is not None and not self._finished:
            raise self._failure
        raise SessionOver("the session is finished: no chunk follows")

    def _refused(self, index: int, error: WorldError) -> None:
        """A control was not carried out: the next one takes its index, or none follows."""
        if error.ends_session:
            self._fail(error)
        elif not isinstance(error, Duplicate):  # the chunk was made, but for another call
            self._next_index = min(self._next_index, index)

    def _fail(self, error: WorldError) -> None:
        self._failure = self._failure or error
        self._opened.set()
        self._controls.put_nowait(None)
