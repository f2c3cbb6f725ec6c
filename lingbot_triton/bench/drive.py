"""One measured session: the real client against the real server, frames checked and dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lingbot_client import WorldClient, WorldError, WorldSession
from lingbot_client.figures import ChunkSample
from lingbot_client.frames import FramePart
from lingbot_client.pace import Check, play
from lingbot_client.picture import default_picture
from lingbot_client.timeline import Span, read_spans

from lingbot_triton.simulated.marks import Mark, fingerprint, read_mark

PROMPT = "A wide green landscape under a clear sky, a path leading to distant hills."
KEYS = ("w", "w", "wl", "", "sa")
CLOSE_SECONDS = 60.0


@dataclass(frozen=True)
class Pace:
    """How many controls a session gets, and when."""

    chunks: int
    think: float = 0.0
    ahead: bool = False


@dataclass(frozen=True)
class FrameSize:
    width: int
    height: int

    @property
    def options(self) -> dict[str, Any]:
        # One pixel more than the area: a size is rounded down, and roots are not exact.
        return {"max_area": self.width * self.height + 1}


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


@dataclass
class Played:
    """What a session was measured to do."""

    samples: list[ChunkSample] = field(default_factory=list)
    ready: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] | None = None

    @property
    def spans(self) -> list[Span]:
        return read_spans(self.summary)


def open_session(
    client: WorldClient, size: FrameSize, chunks: int, seed: int, **options: Any
) -> WorldSession:
    """A session for `chunks` chunks, whose frames have `size`."""
    return client.open_session(
        default_picture(size.width, size.height),
        PROMPT,
        close_timeout=CLOSE_SECONDS,
        **{"seed": seed, "chunk_count": chunks, **size.options, **options},
    )


async def measure(
    client: WorldClient,
    size: FrameSize,
    pace: Pace,
    *,
    seed: int = 42,
    on_chunk: Callable[[ChunkSample], None] = lambda sample: None,
    gate: Gate | None = None,
    **options: Any,
) -> Played:
    """Play one session and measure it; with a `gate`, sessions start together.

    A session that does not even open counts with all its chunks as failed.
    """
    played = Played()
    session = open_session(client, size, pace.chunks, seed, **options)
    try:
        async with session:
            played.ready = session.ready
            if gate is not None:
                await gate.pass_through()
            played.samples = await play(
                session,
                KEYS,
                pace.chunks,
                think=pace.think,
                ahead=pace.ahead,
                check=mark_check(seed) if session.ready.get("simulated") else None,
                on_chunk=on_chunk,
            )
    except WorldError as error:
        if gate is not None:
            gate.arrive()
        played.samples = _none_came(pace.chunks, str(error))
    played.summary = session.summary
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


def _none_came(chunks: int, error: str) -> list[ChunkSample]:
    never = float("inf")
    return [ChunkSample(index, 0, 0.0, never, 0.0, error=error) for index in range(chunks)]


def errors(sessions: Sequence[Played]) -> list[str]:
    """What went wrong, each sentence once."""
    return sorted({s.error for played in sessions for s in played.samples if s.error})
