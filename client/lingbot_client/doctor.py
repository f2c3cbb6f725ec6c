"""Examines a server and says in words what is wrong with it."""

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

TESTED_VERSION = (2, 51)
DESCRIBE_SECONDS = 15.0
KEYS = ("w", "l")
"""What the chunks that are played are made with."""
WARM_UP_FACTOR = 3.0
"""A first chunk this many times slower than the second one is worth a note."""
MAX_NETWORK_MS, MAX_CONDITION_WAIT_MS = 100, 20
"""More than this is worth a note."""


class Level(Enum):
    """How good or bad a finding is."""

    GOOD = "good"
    NOTE = "note"
    WRONG = "wrong"


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    level: Level
    what: str
    text: str


class _Wrong(Exception):
    """Something is wrong, and nothing further can be checked."""


async def examine(
    client: WorldClient, url: str, *, tls: bool = False, patience: float = 120.0
) -> AsyncIterator[Finding]:
    """Check a server step by step, up to the first thing that is wrong.

    `patience` is how many seconds each response of a session may take.
    """
    what = "server"
    try:
        info = await _describe(client, url, tls)
        yield Finding(Level.GOOD, what, f"{info.name} {info.version} answers at {url}")
        if (version := _version(info.version)) and version < TESTED_VERSION:
            tested = ".".join(map(str, TESTED_VERSION))
            yield Finding(Level.NOTE, what, f"tested with {tested} and newer, not {info.version}")
        what = "models"
        yield Finding(Level.GOOD, what, f"{', '.join(_check_models(info))} are ready")
        what = "session"
        session = client.open_session(default_picture(), DEFAULT_PROMPT, chunk_count=len(KEYS))
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


def _check_models(info: ServerInfo) -> tuple[str, ...]:
    """The models of the service, all of which are ready."""
    ready = {model.name: model.ready for model in info.models}
    if protocol.MODEL not in ready:
        others = ", ".join(sorted(ready)) or "nothing"
        raise _Wrong(f"no model {protocol.MODEL!r}: this Triton server serves {others}")
    names = (protocol.MODEL, *info.stages)
    if absent := [name for name in names if name not in ready]:
        raise _Wrong(f"{' and '.join(absent)} not loaded; the server's log says why")
    if unready := [name for name in names if not ready[name]]:
        raise _Wrong(f"{' and '.join(unready)} not ready: loading, or failed; see the server's log")
    return names


async def _play(session: WorldSession, patience: float) -> AsyncIterator[Finding]:
    """Play a chunk for each of `KEYS`."""
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
        for index, keys in enumerate(KEYS):
            await session.send(keys)
            chunk = await _patient(session.next_chunk(), patience, f"chunk {index}")
            _check_chunk(chunk, index, ready)
            chunks.append(chunk)
            yield _timing(chunk)
        for text in _remarks(*chunks):
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


def _check_chunk(chunk: Chunk, index: int, ready: dict[str, Any]) -> None:
    expected = protocol.chunk_frames(index, protocol.chunk_latent_frames(ready))
    if (chunk.chunk_index, len(chunk.frames)) != (index, expected):
        raise _Wrong(
            f"chunk {chunk.chunk_index} came with {len(chunk.frames)} frames instead of chunk "
            f"{index} with {expected}"
        )
    if not ready.get("simulated") and not np.ptp(chunk.frames):
        raise _Wrong(f"all frames of chunk {index} are of one colour: are the weights right?")


def _timing(chunk: Chunk) -> Finding:
    text = (
        f"{_seconds(chunk.first_frame_ms)} from control to first frame, "
        f"{_seconds(chunk.last_frame_ms)} to the last of {len(chunk.frames)}"
    )
    return Finding(Level.GOOD, f"chunk {chunk.chunk_index}", text)


def _seconds(ms: float | None) -> str:
    return "an unknown time" if ms is None else f"{ms / 1000:.3f} s"


def _remarks(first: Chunk, second: Chunk) -> list[str]:
    """What may be worth knowing about the pace; nothing here is wrong by itself."""
    remarks = []
    if first.last_frame_ms and second.last_frame_ms:
        seconds = _seconds(second.last_frame_ms)
        if first.last_frame_ms > WARM_UP_FACTOR * second.last_frame_ms:
            remarks.append(
                f"the first chunk took {_seconds(first.last_frame_ms)}, the second {seconds}: "
                "the models were still warming up"
            )
        playing = len(second.frames) / FRAMES_PER_SECOND
        if second.last_frame_ms > 1000 * playing:
            remarks.append(f"slower than it plays: {playing:.2f} s of video take {seconds}")
        part = second.parts[-1]
        network_ms = 1000 * (part.received_at - part.sent_at) - second.last_frame_ms
        if network_ms > MAX_NETWORK_MS:
            remarks.append(f"{_seconds(network_ms)} of the second chunk were spent on the network")
    wait = milliseconds(second.parts[0], "condition_wait")
    if wait is not None and wait > MAX_CONDITION_WAIT_MS:
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
