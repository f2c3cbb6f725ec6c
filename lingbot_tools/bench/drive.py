"""Measured sessions: the real client against a real server, frames checked and dropped."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from lingbot_client import WorldClient, WorldSession
from lingbot_client.figures import ChunkSample
from lingbot_client.frames import FramePart
from lingbot_client.pace import Check, Gate, Pace, Played, play_session
from lingbot_client.picture import DEFAULT_PROMPT, default_picture

from lingbot_triton.simulated.marks import Mark, fingerprint, read_mark

Key = TypeVar("Key")

KEYS = ("w", "w", "wl", "", "sa")
CLOSE_SECONDS = 60.0


@dataclass(frozen=True)
class FrameSize:
    width: int
    height: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"

    @property
    def options(self) -> dict[str, Any]:
        # One pixel more than the area: a size is rounded down, and roots are not exact.
        return {"max_area": self.width * self.height + 1}


def open_session(
    client: WorldClient, size: FrameSize, chunks: int, seed: int, **options: Any
) -> WorldSession:
    """A session for `chunks` chunks, whose frames have `size`, with a picture of its own.

    Sessions with the same picture may share conditions, and would measure nothing.
    """
    picture = default_picture(size.width, size.height)
    red, green, blue = os.urandom(3)
    picture.putpixel((0, 0), (red, green, blue))
    options = {"seed": seed, "chunk_count": chunks, **size.options, **options}
    return client.open_session(picture, DEFAULT_PROMPT, close_timeout=CLOSE_SECONDS, **options)


async def measure(
    client: WorldClient,
    size: FrameSize,
    pace: Pace,
    *,
    seed: int = 42,
    gate: Gate | None = None,
    on_chunk: Callable[[ChunkSample], None] = lambda sample: None,
    **options: Any,
) -> Played:
    """Play one session and measure it; where stages are simulated, every frame's mark is read."""
    session = open_session(client, size, pace.chunks, seed, **options)

    def check(ready: dict[str, Any]) -> Check | None:
        return mark_check(seed) if ready.get("simulated") else None

    return await play_session(session, KEYS, pace, gate or Gate(1), check, on_chunk)


async def take_turns(
    rounds: int, cases: Mapping[Key, Callable[[], Coroutine[Any, Any, Played]]]
) -> dict[Key, list[Played]]:
    """Play one session of each case after the other, `rounds` times; returns them by case."""
    played: dict[Key, list[Played]] = {case: [] for case in cases}
    for _ in range(rounds):
        for case, play in cases.items():
            played[case].append(await play())
    return played


def mark_check(seed: int) -> Check:
    """Compares the marks of simulated frames with what they have to be."""

    def check(part: FramePart) -> str:
        for number, frame in enumerate(part.frames):
            expected = Mark(fingerprint(seed), part.chunk_index, part.frame_index + number)
            if read_mark(frame) != expected:
                return f"a frame is marked {read_mark(frame)}; it should be {expected}"
        return ""

    return check


def errors(sessions: Iterable[Played]) -> list[str]:
    """What went wrong, each sentence once."""
    return sorted({error for played in sessions for error in played.errors})
