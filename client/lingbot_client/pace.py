"""Plays a session at a person's pace and notes when frames came."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lingbot_client.errors import WorldError
from lingbot_client.figures import ChunkSample
from lingbot_client.frames import FramePart, milliseconds
from lingbot_client.session import WorldSession

Check = Callable[[FramePart], str]
"""What is wrong with a part of a chunk, empty when nothing is."""

SERVER_TIMES = ("queue", "condition_wait", "denoise")


@dataclass(frozen=True)
class Pace:
    """How many controls a session gets, and when."""

    chunks: int
    think: float = 0.0
    """Seconds between a chunk's last frames and the next control."""
    ahead: bool = False
    """Whether each control is sent one chunk earlier."""


@dataclass
class Played:
    """What a session was measured to do."""

    samples: list[ChunkSample] = field(default_factory=list)
    ready: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] | None = None

    @property
    def errors(self) -> list[str]:
        return [sample.error for sample in self.samples if sample.error]


class Gate:
    """Opens once `count` have arrived, so that all start together."""

    def __init__(self, count: int) -> None:
        self._missing = count
        self._open = asyncio.Event()

    def arrive(self) -> None:
        self._missing -= 1
        if self._missing <= 0:
            self._open.set()

    async def pass_through(self) -> None:
        self.arrive()
        await self._open.wait()


async def play_session(
    session: WorldSession,
    keys: Sequence[str],
    pace: Pace,
    gate: Gate,
    check: Callable[[dict[str, Any]], Check | None] = lambda ready: None,
    on_chunk: Callable[[ChunkSample], None] = lambda sample: None,
) -> Played:
    """Open a session, wait at the gate, play it, close it; `check` makes a check from `ready`.

    All chunks of a session that does not even open have failed.
    """
    played = Played()
    try:
        async with session:
            played.ready = session.ready
            await gate.pass_through()
            played.samples = await play(session, keys, pace, check(session.ready), on_chunk)
    except WorldError as error:
        gate.arrive()
        played.samples = [_failed(index, (), str(error)) for index in range(pace.chunks)]
    played.summary = session.summary
    return played


async def play(
    session: WorldSession,
    keys: Sequence[str],
    pace: Pace,
    check: Check | None = None,
    on_chunk: Callable[[ChunkSample], None] = lambda sample: None,
) -> list[ChunkSample]:
    """Send a session's controls, repeating `keys`, and measure each chunk.

    After an error, this chunk and all later ones are failed samples. Frames are looked at by
    `check` and dropped.
    """
    samples: list[ChunkSample] = []
    sent_at: list[float] = []
    try:
        for index in range(pace.chunks):
            if index and pace.think:
                await asyncio.sleep(pace.think)
            while len(sent_at) < min(index + 1 + pace.ahead, pace.chunks):
                sent_at.append(time.monotonic())
                await session.send(keys[(len(sent_at) - 1) % len(keys)])
            samples.append(await _receive(session, index, check))
            on_chunk(samples[-1])
    except WorldError as error:
        # Chunks that a broken session never made have failed as well.
        for index in range(len(samples), pace.chunks):
            samples.append(_failed(index, sent_at, str(error)))
            on_chunk(samples[-1])
    return samples


def _failed(index: int, sent_at: Sequence[float], error: str) -> ChunkSample:
    now = time.monotonic()
    return ChunkSample(
        index, 0, sent_at[index] if index < len(sent_at) else now, math.inf, now, error=error
    )


async def _receive(session: WorldSession, index: int, check: Check | None) -> ChunkSample:
    """Wait for a chunk, keeping only its times."""
    part = first = await session.next_part()
    complaint, frames = _complaint(part, index, check), len(part.frames)
    while not part.last:
        part = await session.next_part()
        complaint = complaint or _complaint(part, index, check)
        frames += len(part.frames)
    given = {name: milliseconds(first, name) for name in SERVER_TIMES}
    given["first_frames"] = milliseconds(first, "since_acceptance")
    given["whole_chunk"] = milliseconds(part, "since_acceptance")
    return ChunkSample(
        index,
        frames,
        first.sent_at,
        first.received_at,
        part.received_at,
        {name: value for name, value in given.items() if value is not None},
        complaint,
    )


def _complaint(part: FramePart, index: int, check: Check | None) -> str:
    if part.chunk_index != index:
        return f"a part of chunk {part.chunk_index} came for chunk {index}"
    return check(part) if check is not None else ""
