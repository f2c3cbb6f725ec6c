"""Looks a server over and says in words what is wrong with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

import numpy as np

from lingbot_client import protocol
from lingbot_client.client import WorldClient
from lingbot_client.errors import (
    BadRequest,
    ConnectionFailed,
    ProtocolError,
    SessionFailed,
    SessionLimit,
    ShuttingDown,
    StageFailed,
    StageTimeout,
    TritonError,
    WorldError,
)
from lingbot_client.frames import Chunk, milliseconds
from lingbot_client.listener import explain_silence
from lingbot_client.picture import DEFAULT_PROMPT, default_picture
from lingbot_client.session import WorldSession
from lingbot_client.transport import ServerInfo
from lingbot_client.video import FRAMES_PER_SECOND

T = TypeVar("T")

MODELS = (protocol.MODEL, "prompt", "condition", "denoise", "decode")
TESTED_VERSION = (2, 51)
DESCRIBE_SECONDS = 15.0
FRAMES_OF_CHUNKS = (9, 12)
WARM_UP_FACTOR = 3.0
"""A first chunk this many times slower than the second one is worth a note."""


class Level(Enum):
    """How good or bad a finding is."""

    GOOD = "good"
    NOTE = "note"
    WRONG = "wrong"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    what: str
    text: str


class _Wrong(Exception):
    """Something is wrong, and nothing further can be looked at."""


async def examine(
    client: WorldClient, url: str, *, tls: bool = False, patience: float = 120.0
) -> AsyncIterator[Finding]:
    """Look a server over, step by step, up to the first thing that is wrong.

    `patience` is how many seconds each answer of a session may take.
    """
    what = "server"
    try:
        info = await _describe(client, url, tls)
        yield Finding(Level.GOOD, what, f"{info.name} {info.version} answers at {url}")
        if (version := _version(info.version)) and version < TESTED_VERSION:
            tested = ".".join(map(str, TESTED_VERSION))
            yield Finding(Level.NOTE, what, f"tested with {tested} and newer, not {info.version}")
        what = "models"
        _check_models(info)
        yield Finding(Level.GOOD, what, f"{', '.join(MODELS)} are ready")
        what = "session"
        session = client.open_session(default_picture(), DEFAULT_PROMPT, chunk_count=2)
        async for finding in _play(session, patience):
            yield finding
    except _Wrong as wrong:
        yield Finding(Level.WRONG, what, str(wrong))


async def _describe(client: WorldClient, url: str, tls: bool) -> ServerInfo:
    try:
        info = await asyncio.wait_for(client.server_info(), DESCRIBE_SECONDS)
    except (WorldError, asyncio.TimeoutError):
        raise _Wrong(await explain_silence(url, tls=tls)) from None
    if not info.live:
        raise _Wrong(f"{info.name} {info.version} answers at {url}, but says that it is not live")
    return info


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())


def _check_models(info: ServerInfo) -> None:
    ready = {model.name: model.ready for model in info.models}
    if protocol.MODEL not in ready:
        others = ", ".join(sorted(ready)) or "nothing"
        raise _Wrong(f"no model {protocol.MODEL!r}: this Triton server serves {others}")
    if absent := [name for name in MODELS if name not in ready]:
        raise _Wrong(f"{' and '.join(absent)} not loaded; the server's log says why")
    if unready := [name for name in MODELS if not ready[name]]:
        raise _Wrong(f"{' and '.join(unready)} not ready: loading, or failed; see the server's log")


async def _play(session: WorldSession, patience: float) -> AsyncIterator[Finding]:
    """Play two chunks for real."""
    started = time.monotonic()
    try:
        ready = await _patient(session.open(), patience, "the opening of a session")
        seconds = time.monotonic() - started
        size = f"{ready.get('width')}x{ready.get('height')}"
        text = f"{ready.get('model')}, {size}, opened in {seconds:.2f} s"
        yield Finding(Level.GOOD, "session", text)
        if ready.get("simulated"):
            text = "this server is simulated: its stages only take time, its frames are grey"
            yield Finding(Level.NOTE, "session", text)
        chunks = []
        for index, keys in enumerate(("w", "l")):
            await session.send(keys)
            chunks.append(await _patient(session.next_chunk(), patience, f"chunk {index}"))
            _check_chunk(chunks[-1], index, bool(ready.get("simulated")))
            yield _timing(chunks[-1])
        for text in _remarks(chunks):
            yield Finding(Level.NOTE, "pace", text)
    except WorldError as error:
        raise _Wrong(_explain(error)) from None
    finally:
        await session.close()
    if session.summary is None:
        raise _Wrong("the session's END was not answered")
    yield Finding(Level.GOOD, "session", f"closed, with {session.summary.get('frames')} frames")


async def _patient(work: Coroutine[Any, Any, T], seconds: float, what: str) -> T:
    try:
        return await asyncio.wait_for(work, seconds)
    except asyncio.TimeoutError:
        raise _Wrong(f"{what} is not answered within {seconds:g} s: a stage hangs?") from None


def _check_chunk(chunk: Chunk, index: int, simulated: bool) -> None:
    count = len(chunk.frames)
    if (chunk.chunk_index, count) != (index, FRAMES_OF_CHUNKS[index]):
        raise _Wrong(
            f"chunk {chunk.chunk_index} came with {count} frames instead of chunk {index} "
            f"with {FRAMES_OF_CHUNKS[index]}"
        )
    if not simulated and not np.ptp(chunk.frames):
        raise _Wrong(f"all frames of chunk {index} are of one colour: are the weights right?")


def _timing(chunk: Chunk) -> Finding:
    text = (
        f"{_seconds(chunk.first_frame_ms)} from control to first frame, "
        f"{_seconds(chunk.last_frame_ms)} to the last of {len(chunk.frames)}"
    )
    return Finding(Level.GOOD, f"chunk {chunk.chunk_index}", text)


def _seconds(ms: float | None) -> str:
    return "an untold time" if ms is None else f"{ms / 1000:.3f} s"


def _remarks(chunks: list[Chunk]) -> list[str]:
    """What may be worth knowing of the pace; nothing here is wrong by itself."""
    first, second = chunks
    remarks = []
    if first.last_frame_ms and second.last_frame_ms:
        if first.last_frame_ms > WARM_UP_FACTOR * second.last_frame_ms:
            remarks.append(
                f"the first chunk took {_seconds(first.last_frame_ms)}, the second "
                f"{_seconds(second.last_frame_ms)}: the models were still warming up"
            )
        shown = len(second.frames) / FRAMES_PER_SECOND
        if second.last_frame_ms > 1000 * shown:
            remarks.append(
                f"slower than it plays: {shown:.2f} s of video take "
                f"{_seconds(second.last_frame_ms)}"
            )
        part = second.parts[-1]
        on_the_way = 1000 * (part.received_at - part.sent_at) - second.last_frame_ms
        if on_the_way > 100:
            remarks.append(f"{_seconds(on_the_way)} of the second chunk were spent on the network")
    wait = milliseconds(second.parts[0], "condition_wait")
    if wait is not None and wait > 20:
        remarks.append(f"the second control waited {_seconds(wait)} for its condition")
    return remarks


def _explain(error: WorldError) -> str:
    match error:
        case SessionLimit():
            return f"the server is full: {error}; try again when somebody has left"
        case ShuttingDown():
            return f"the server is about to stop: {error}"
        case StageFailed() | StageTimeout() | SessionFailed():
            return f"a stage of the model does not work: {error}; the server's log says more"
        case BadRequest() | ProtocolError() | TritonError():
            return f"an ordinary session is refused, do client and server fit together? {error}"
        case ConnectionFailed():
            return f"the connection broke in the middle of a session: {error}"
    return f"a session ended early: {error}"
