"""What is played: one session without end, or one short session after another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from lingbot_client import Chunk, WorldClient
from lingbot_client.picture import DEFAULT_PROMPT, default_picture, encode_picture

from lingbot_tools.soak.usage import Sample
from lingbot_triton.triton.server import ServerProcess

KEYS = ("w", "wl", "", "sa", "ij")
WINDOW_FRAMES = 6
SAMPLES = 200
CHUNKS_OF_A_SHORT_SESSION = 2
SESSIONS_AT_A_TIME = 2
SETTLE_SECONDS = 0.05
"""What a closed session is given before its process sizes are read."""


@dataclass
class Phase:
    """One kind of play, and what was seen during it."""

    name: str
    unit: str
    count: int
    slope_kb: float
    """By how much anything may grow for each chunk, or session."""
    samples: list[Sample] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    """Seconds from acceptance to last frames of the chunks, in the order in which they came."""

    def due(self) -> Iterator[bool]:
        """For every chunk or session, whether a sample is to be taken after it."""
        step = max(1, self.count // SAMPLES)
        return (done % step == 0 for done in range(1, self.count + 1))

    def note(self, chunk: Chunk) -> None:
        if chunk.last_frame_ms is not None:
            self.latencies.append(chunk.last_frame_ms / 1000)


def endless(chunks: int) -> Phase:
    return Phase("one endless session", "chunk", chunks, slope_kb=1.0)


def short(sessions: int) -> Phase:
    return Phase("short sessions", "session", sessions, slope_kb=10.0)


Tick = Callable[[], None]


async def play_endless(phase: Phase, server: ServerProcess, area: int, tick: Tick) -> None:
    """Play one session in a window of keys and values, chunk after chunk."""
    async with (
        WorldClient(server.grpc) as client,
        client.open_session(
            default_picture(), DEFAULT_PROMPT, max_area=area, kv_window_frames=WINDOW_FRAMES
        ) as session,
    ):
        for index, due in enumerate(phase.due()):
            await session.send(KEYS[index % len(KEYS)])
            phase.note(await session.next_chunk())
            if due:
                phase.samples.append(Sample.take(server, index + 1))
            tick()


async def play_short(phase: Phase, server: ServerProcess, area: int, tick: Tick) -> None:
    """Open, play and close sessions, a few at a time."""
    # Once for all: large blocks that come and go would hide what a session leaves here.
    picture = encode_picture(default_picture())
    async with WorldClient(server.grpc) as client:
        done = 0
        for due in _groups(phase):
            count = len(due)
            await asyncio.gather(*(_play_one(phase, client, picture, area) for _ in range(count)))
            done += count
            if any(due):
                await asyncio.sleep(SETTLE_SECONDS)
                phase.samples.append(Sample.take(server, done))
            for _ in range(count):
                tick()


def _groups(phase: Phase) -> Iterator[list[bool]]:
    due = list(phase.due())
    for first in range(0, len(due), SESSIONS_AT_A_TIME):
        yield due[first : first + SESSIONS_AT_A_TIME]


async def _play_one(phase: Phase, client: WorldClient, picture: bytes, area: int) -> None:
    count = CHUNKS_OF_A_SHORT_SESSION
    async with client.open_session(
        picture, DEFAULT_PROMPT, max_area=area, chunk_count=count
    ) as session:
        for keys in KEYS[:count]:
            await session.send(keys)
            phase.note(await session.next_chunk())
