"""A server in memory that speaks the protocol, behind the client's transport."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import numpy as np
from lingbot_client import WorldClient, WorldSession
from lingbot_client.errors import ConnectionFailed, Disconnected
from lingbot_client.protocol import Array
from lingbot_client.transport import RawResponse, Request, ServerInfo
from PIL import Image

HEIGHT, WIDTH, PARTS, WINDOW = 16, 24, 3, 2

READY = {
    "model": "fake",
    "simulated": True,
    "width": WIDTH,
    "height": HEIGHT,
    "control_window": WINDOW,
    "chunk_latent_frames": 3,
}

Reaction = Callable[["FakeStream", Request], None]


def outputs(status: str, **values: Any) -> dict[str, Array]:
    """The six tensors of a response."""
    return {
        "status": np.array([status.encode()], dtype=object),
        "message": np.array([values.get("message", "").encode()], dtype=object),
        "chunk_index": np.array([values.get("chunk_index", -1)], dtype=np.int32),
        "frame_index": np.array([values.get("frame_index", -1)], dtype=np.int32),
        "frames": values.get("frames", np.zeros((0, 0, 0, 3), np.uint8)),
        "info": np.array([json.dumps(values.get("info", {})).encode()], dtype=object),
    }


def refuse(code: str, message: str = "no") -> Reaction:
    """Respond with an error code."""

    def react(stream: FakeStream, request: Request) -> None:
        stream.respond(request, outputs(code, message=message))
        stream.end(request)

    return react


def complain(message: str) -> Reaction:
    """Respond with an error of Triton's own, which names no request."""
    return lambda stream, request: stream.put(RawResponse("", final=True, error=message))


def drop(stream: FakeStream, request: Request) -> None:
    """End the request without a response, as the scheduler does with a cancelled one."""
    stream.end(request)


def ignore(stream: FakeStream, request: Request) -> None:
    """Never respond."""


def hang_up(stream: FakeStream, request: Request) -> None:
    """Lose the connection."""
    stream.put(Disconnected("the connection was lost"))


class FakeStream:
    """One stream; what the server says waits in `waiting` while `hold` is set."""

    def __init__(self, server: FakeServer) -> None:
        self.finished = self.cancelled = False
        self._server = server
        self._responses: asyncio.Queue[RawResponse | ConnectionFailed] = asyncio.Queue()

    def send(self, request: Request) -> None:
        self._server.take(self, request)

    async def receive(self) -> RawResponse:
        response = await self._responses.get()
        if isinstance(response, ConnectionFailed):
            raise response
        return response

    def finish(self) -> None:
        self.finished = True
        self.deliver(Disconnected("the server ended the stream"))

    def cancel(self) -> None:
        self.cancelled = True

    def respond(self, request: Request, tensors: dict[str, Array]) -> None:
        self.put(RawResponse(request.id, tensors))

    def end(self, request: Request) -> None:
        self.put(RawResponse(request.id, final=True))

    def put(self, response: RawResponse | ConnectionFailed) -> None:
        if self._server.hold:
            self._server.waiting.append((self, response))
        else:
            self.deliver(response)

    def deliver(self, response: RawResponse | ConnectionFailed) -> None:
        self._responses.put_nowait(response)


class FakeServer:
    """A transport whose other end makes frames of one grey per part, and counts what it sees.

    `reactions` replace what it does with a START ("start"), an END ("end"), or the control of a
    chunk index, once each.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.streams: list[FakeStream] = []
        self.reactions: dict[str | int, Reaction] = {}
        self.hold = False
        self.waiting: list[tuple[FakeStream, RawResponse | ConnectionFailed]] = []
        self.info = ServerInfo(True, True, "fake", "1.0", (), ())
        self.closed = False
        self._next: dict[int | str, int] = {}
        self._frames: dict[int | str, int] = {}

    @property
    def chunk_indices(self) -> list[int]:
        """Chunk indices of the controls seen so far, in order."""
        return [int(r.inputs["chunk_index"][0]) for r in self.requests if "chunk_index" in r.inputs]

    def open_stream(self) -> FakeStream:
        self.streams.append(FakeStream(self))
        return self.streams[-1]

    async def describe(self) -> ServerInfo:
        return self.info

    async def close(self) -> None:
        self.closed = True

    def release(self, count: int) -> None:
        """Let the next `count` waiting responses go."""
        for stream, response in self.waiting[:count]:
            stream.deliver(response)
        del self.waiting[:count]

    def take(self, stream: FakeStream, request: Request) -> None:
        """Receive a request."""
        self.requests.append(request)
        name: str | int = "start" if request.start else "end" if request.end else -1
        if "chunk_index" in request.inputs:
            name = int(request.inputs["chunk_index"][0])
        reaction = self.reactions.pop(name, None)
        if reaction is not None:
            reaction(stream, request)
            return
        if request.start and ("image" in request.inputs or request.sequence_id not in self._next):
            self._next[request.sequence_id] = self._frames[request.sequence_id] = 0
            stream.respond(request, outputs("READY", info=READY))
        if isinstance(name, int):
            self._control(stream, request, name)
        if request.end:
            summary = {"reason": "end", "chunks": self._next.pop(request.sequence_id, 0)}
            stream.respond(request, outputs("CLOSED", info=summary))
        stream.end(request)

    def _control(self, stream: FakeStream, request: Request, index: int) -> None:
        expected = self._next[request.sequence_id]
        if index != expected:
            code = "DUPLICATE" if index < expected else "OUT_OF_ORDER"
            message = f"chunk {index} came, {expected} is next"
            stream.respond(request, outputs(code, message=message, chunk_index=index))
            return
        self._next[request.sequence_id] += 1
        for part in range(PARTS):
            self._part(stream, request, index, part)

    def _part(self, stream: FakeStream, request: Request, index: int, part: int) -> None:
        count = 1 if index == part == 0 else 4
        keys = request.inputs.get("keys")
        info = {
            "part": part,
            "parts": PARTS,
            "keys": None if keys is None else b"".join(keys).decode(),
            "ms": {"condition_wait": 0.5, "since_acceptance": 100.0 * (part + 1)},
        }
        stream.respond(
            request,
            outputs(
                "FRAMES",
                chunk_index=index,
                frame_index=self._frames[request.sequence_id],
                frames=np.full((count, HEIGHT, WIDTH, 3), (30 * index + part) % 256, np.uint8),
                info=info,
            ),
        )
        self._frames[request.sequence_id] += count


async def settle() -> None:
    """Let every task run until all of them wait."""
    for _ in range(20):
        await asyncio.sleep(0)


PICTURE = Image.new("RGB", (24, 16), (10, 20, 30))


def open_session(client: WorldClient, close_timeout: float = 60.0) -> WorldSession:
    return client.open_session(PICTURE, "a street", close_timeout=close_timeout, seed=7)
