"""What is played, one endless session or many short ones, and what the processes use meanwhile."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psutil
from lingbot_client import WorldClient
from lingbot_client.picture import DEFAULT_PROMPT, default_picture, encode_picture

from lingbot_triton.triton.server import ServerProcess

KEYS = ("w", "wl", "", "sa", "ij")
AREA = 64 * 96
WINDOW_FRAMES = 6
SAMPLES = 200
CHUNKS_OF_A_SHORT_SESSION = 2
SESSIONS_AT_A_TIME = 2
SETTLE_SECONDS = 0.05
"""What a closed session is given before its process sizes are read."""


@dataclass(frozen=True)
class Usage:
    """One process."""

    rss_kb: int
    threads: int
    files: int

    @classmethod
    def of(cls, pid: int) -> Usage:
        process = psutil.Process(pid)
        return cls(process.memory_info().rss // 1024, process.num_threads(), process.num_fds())


@dataclass(frozen=True)
class Sample:
    """Everything after so many chunks, or sessions."""

    done: int
    processes: dict[str, Usage]
    """By model, or `tritonserver`, or `client` for the process that plays."""
    shared_kb: int
    """Shared memory of the server, as far as it is in use at all."""

    @classmethod
    def take(cls, server: ServerProcess, done: int) -> Sample:
        names = {pid: model for model, pid in server.model_processes().items()}
        names |= {server.pid: "tritonserver", os.getpid(): "client"}
        pids = (*server.processes(), os.getpid())
        processes = {names.get(pid, f"process-{pid}"): Usage.of(pid) for pid in pids}
        return cls(done, processes, sum(path.stat().st_blocks for path in server.regions()) // 2)


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

    def due(self, done: int) -> bool:
        """Whether a sample is to be taken after so many chunks, or sessions."""
        return done % max(1, self.count // SAMPLES) == 0


def endless(chunks: int) -> Phase:
    return Phase("one endless session", "chunk", chunks, slope_kb=1.0)


def short(sessions: int) -> Phase:
    return Phase("short sessions", "session", sessions, slope_kb=10.0)


async def play(phase: Phase, server: ServerProcess, tick: Callable[[], None]) -> None:
    """Play the phase; `tick` is called after every chunk, or session."""
    # Encoded once: large blocks that come and go would hide what a session leaves here.
    picture = encode_picture(default_picture())

    def after(*numbers: int) -> None:
        if any(phase.due(number) for number in numbers):
            phase.samples.append(Sample.take(server, numbers[-1]))
        for _ in numbers:
            tick()

    async def session(chunks: int, after: Callable[[int], None], **options: Any) -> None:
        opening = client.open_session(picture, DEFAULT_PROMPT, max_area=AREA, **options)
        async with opening as session:
            for index in range(chunks):
                await session.send(KEYS[index % len(KEYS)])
                chunk = await session.next_chunk()
                if chunk.last_frame_ms is not None:
                    phase.latencies.append(chunk.last_frame_ms / 1000)
                after(index + 1)

    async with WorldClient(server.grpc) as client:
        if phase.unit == "chunk":
            await session(phase.count, after, kv_window_frames=WINDOW_FRAMES)
            return
        chunks = CHUNKS_OF_A_SHORT_SESSION
        for done in range(0, phase.count, SESSIONS_AT_A_TIME):
            numbers = range(done + 1, min(done + SESSIONS_AT_A_TIME, phase.count) + 1)
            short_sessions = (session(chunks, lambda _: None, chunk_count=chunks) for _ in numbers)
            await asyncio.gather(*short_sessions)
            await asyncio.sleep(SETTLE_SECONDS)
            after(*numbers)
