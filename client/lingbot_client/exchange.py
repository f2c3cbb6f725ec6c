"""One stream, many requests: every response finds the request it belongs to."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lingbot_client.errors import (
    Cancelled,
    Disconnected,
    ProtocolError,
    SequenceEnded,
    WorldError,
    from_triton,
)
from lingbot_client.protocol import Response, tensor
from lingbot_client.transport import RawResponse, Request, Stream

FINISH_TIMEOUT = 1.0
"""Seconds a server has to end a stream on which every request has its final response."""

OnError = Callable[[WorldError], None]


class Call:
    """One request that was sent, and its responses in order: `async for response in call`.

    Error codes come as responses. Raises TritonError, Cancelled and ConnectionFailed where there
    is no response.
    """

    def __init__(self, request: Request, on_error: OnError | None, resumes: bool) -> None:
        self.request = request
        self.resumes = resumes
        """Whether to send START again where another client has ended the sequence."""
        self.sent_at = time.monotonic()
        self.first_response = asyncio.Event()
        """Set when the first response has arrived, or when none will."""
        self._on_error = on_error
        self._responses: asyncio.Queue[Response | WorldError | None] = asyncio.Queue()

    def __aiter__(self) -> Call:
        return self

    async def __anext__(self) -> Response:
        response = await self._responses.get()
        if isinstance(response, Response):
            return response
        self._responses.put_nowait(response)  # every later call finds the end again
        raise response or StopAsyncIteration

    async def collect(self) -> list[Response]:
        """All responses, up to the final one."""
        return [response async for response in self]

    def feed(self, response: Response) -> None:
        """Take in a response."""
        self._responses.put_nowait(response)
        self.first_response.set()
        self._report(response.error)

    def end(self, error: WorldError | None = None) -> None:
        """No response follows; a call that never had one was dropped by the server."""
        if error is None and not self.first_response.is_set():
            error = Cancelled("the server dropped the request without an answer")
        self._responses.put_nowait(error)
        self.first_response.set()
        self._report(error)

    def _report(self, error: WorldError | None) -> None:
        if error is not None and self._on_error is not None:
            self._on_error(error)


class Exchange:
    """Sends requests over a stream and hands every response to its call, until closed."""

    def __init__(self, stream: Stream, on_break: OnError | None = None) -> None:
        self._stream = stream
        self._on_break = on_break
        self._ids = itertools.count(1)
        self._pending: dict[str, Call] = {}
        self._broken: WorldError | None = None
        self._reader = asyncio.create_task(self._read())

    def call(
        self,
        sequence_id: int | str,
        *,
        start: bool = False,
        end: bool = False,
        inputs: dict[str, Any],
        on_error: OnError | None = None,
        resumes: bool = False,
    ) -> Call:
        """Send a request; an input that is None is left out. Raises what broke the stream.

        Triton ends a sequence whichever client sends END, but the server keeps the session: a call
        that `resumes` is then sent once more, with START.
        """
        if self._broken is not None:
            raise self._broken
        tensors = {name: tensor(value) for name, value in inputs.items() if value is not None}
        request = Request(str(next(self._ids)), sequence_id, start, end, tensors)
        call = Call(request, on_error, resumes and not start)
        self._send(call)
        return call

    def _send(self, call: Call) -> None:
        self._pending[call.request.id] = call
        self._stream.send(call.request)

    async def close(self) -> None:
        """Give the stream up; calls that still wait for responses fail with Disconnected."""
        # Not cancelled at once: a cancelled stream on which Triton 24.10 refused a request
        # delays that server's own exit by 30 seconds.
        if not self._pending:
            self._stream.finish()
            await asyncio.wait([self._reader], timeout=FINISH_TIMEOUT)
        self._stream.cancel()
        self._reader.cancel()
        await asyncio.wait([self._reader])
        self._break(Disconnected("the connection was closed on this side"))

    async def _read(self) -> None:
        reason: WorldError = Disconnected("the connection was closed on this side")
        try:
            while True:
                self._dispatch(await self._stream.receive())
        except WorldError as error:
            reason = error
        finally:
            self._break(reason)  # whatever happened, no call is left waiting

    def _dispatch(self, response: RawResponse) -> None:
        request_id = response.request_id or self._oldest()
        call = self._pending.get(request_id)
        if call is None:
            raise ProtocolError(f"a response to no request of ours: {response}")
        if response.outputs:
            call.feed(Response.from_tensors(response.outputs, time.monotonic()))
        if response.final:
            del self._pending[request_id]
            error = from_triton(response.error) if response.error is not None else None
            if isinstance(error, SequenceEnded) and call.resumes:
                call.resumes = False
                call.request = replace(call.request, id=str(next(self._ids)), start=True)
                self._send(call)
            else:
                call.end(error)

    def _oldest(self) -> str:
        """The request that a response without an id is about: the oldest that has no response."""
        waiting = (key for key, call in self._pending.items() if not call.first_response.is_set())
        return next(waiting, next(iter(self._pending), ""))

    def _break(self, reason: WorldError) -> None:
        if self._broken is not None:
            return
        self._broken = reason
        for call in self._pending.values():
            call.end(reason)
        self._pending.clear()
        if self._on_break is not None:
            self._on_break(reason)
