"""Plays a session at a person's pace and notes when frames came."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence

from lingbot_client.errors import WorldError
from lingbot_client.figures import ChunkSample
from lingbot_client.frames import FramePart, milliseconds
from lingbot_client.session import WorldSession

Check = Callable[[FramePart], str]
"""What is wrong with a part of a chunk, empty when nothing is."""

SERVER_TIMES = ("queue", "condition_wait", "denoise")


async def play(
    session: WorldSession,
    keys: Sequence[str],
    chunks: int,
    *,
    think: float = 0.0,
    ahead: bool = False,
    check: Check | None = None,
    on_chunk: Callable[[ChunkSample], None] = lambda sample: None,
) -> list[ChunkSample]:
    """Send `chunks` controls, repeating `keys`, and measure each. After an error, this chunk and
    all later ones are failed samples.

    The next control leaves `think` seconds after a chunk's last frames came, or, with `ahead`,
    one chunk earlier. Frames are looked at by `check` and dropped.
    """
    samples: list[ChunkSample] = []
    sent_at: list[float] = []
    try:
        for index in range(chunks):
            if index and think:
                await asyncio.sleep(think)
            while len(sent_at) < min(index + 1 + ahead, chunks):
                sent_at.append(time.monotonic())
                await session.send(keys[(len(sent_at) - 1) % len(keys)])
            samples.append(await _receive(session, index, check))
            on_chunk(samples[-1])
    except WorldError as error:
        # Chunks that a broken session never made have failed as well.
        for index in range(len(samples), chunks):
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
