"""One stream, many requests: every answer finds the request it belongs to."""

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
from lingbot_client.protocol import Answer, tensor
from lingbot_client.transport import Request, Response, Stream

FINISH_TIMEOUT = 1.0
"""Seconds a server has to end a stream on which it has answered everything."""

OnError = Callable[[WorldError], None]


class Call:
    """One request that was sent, and the answers to it in order: `async for answer in call`.

    Error codes come as answers. What has no answer is raised: TritonError, Cancelled and
    ConnectionFailed.
    """

    def __init__(self, request: Request, on_error: OnError | None, resumes: bool) -> None:
        self.request = request
        self.resumes = resumes
        """Whether to say START again where somebody else has ended the sequence."""
        self.sent_at = time.monotonic()
        self.first_answer = asyncio.Event()
        """Set when the first answer has arrived, or none will."""
        self._on_error = on_error
        self._answers: asyncio.Queue[Answer | WorldError | None] = asyncio.Queue()

    def __aiter__(self) -> Call:
        return self

    async def __anext__(self) -> Answer:
        answer = await self._answers.get()
        if isinstance(answer, Answer):
            return answer
        self._answers.put_nowait(answer)  # the end stays the end, however often one asks
        raise answer or StopAsyncIteration

    async def collect(self) -> list[Answer]:
        """Every answer, up to the final one."""
        return [answer async for answer in self]

    def feed(self, answer: Answer) -> None:
        """Take in an answer."""
        self._answers.put_nowait(answer)
        self.first_answer.set()
        self._tell(answer.error)

    def end(self, error: WorldError | None = None) -> None:
        """No answer follows; a call that never had one was dropped by the server."""
        if error is None and not self.first_answer.is_set():
            error = Cancelled("the server dropped the request without an answer")
        self._answers.put_nowait(error)
        self.first_answer.set()
        self._tell(error)

    def _tell(self, error: WorldError | None) -> None:
        if error is not None and self._on_error is not None:
            self._on_error(error)


class Exchange:
    """Sends requests over a stream and hands every answer to its call, until closed."""

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

        Triton ends a sequence for whoever sends END. The server keeps the session: where a call
        `resumes`, it is then sent once more, with START.
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
        """Give the stream up; calls that still wait for answers fail with Disconnected."""
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
            self._break(reason)  # whatever happened, nobody is left waiting

    def _dispatch(self, response: Response) -> None:
        request_id = response.request_id or self._oldest()
        call = self._pending.get(request_id)
        if call is None:
            raise ProtocolError(f"a response to no request of ours: {response}")
        if response.outputs:
            call.feed(Answer.from_tensors(response.outputs, time.monotonic()))
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
        """The request that a response without an id is about: the oldest without an answer."""
        waiting = (key for key, call in self._pending.items() if not call.first_answer.is_set())
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
