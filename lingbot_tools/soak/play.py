"""One endless session, or many short ones, and what the processes use meanwhile."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import psutil
from lingbot_client import WorldClient
from lingbot_client.picture import DEFAULT_PROMPT, default_picture, encode_picture

from lingbot_tools.soak.phase import Phase, Sample
from lingbot_triton.triton.server import ServerProcess

KEYS = ("w", "wl", "", "sa", "ij")
AREA = 64 * 96
CHUNKS_OF_A_SHORT_SESSION = 2
SESSIONS_AT_A_TIME = 2
SETTLE_SECONDS = 0.05
"""What a closed session is given before its process sizes are read."""


async def play(phase: Phase, server: ServerProcess, tick: Callable[[], None]) -> None:
    """Play the phase; `tick` is called after every chunk, or session."""
    # Encoded once: large blocks that come and go would hide what a session leaves here.
    picture = encode_picture(default_picture())

    def after(*numbers: int) -> None:
        if any(phase.due(number) for number in numbers):
            phase.samples.append(sample(server, numbers[-1]))
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
            await session(phase.count, after, kv_window_frames=6)
            return
        chunks = CHUNKS_OF_A_SHORT_SESSION
        for done in range(0, phase.count, SESSIONS_AT_A_TIME):
            numbers = range(done + 1, min(done + SESSIONS_AT_A_TIME, phase.count) + 1)
            short_sessions = (session(chunks, lambda _: None, chunk_count=chunks) for _ in numbers)
            await asyncio.gather(*short_sessions)
            await asyncio.sleep(SETTLE_SECONDS)
            after(*numbers)


def sample(server: ServerProcess, done: int) -> Sample:
    """What every process of the server uses now, and this one, which plays."""
    names = {pid: model for model, pid in server.model_processes().items()}
    names |= {server.pid: "tritonserver", os.getpid(): "client"}
    usage = {
        names.get(pid, f"process-{pid}"): use(pid) for pid in (*server.processes(), os.getpid())
    }
    sizes = {name: rss_kb for name, (rss_kb, _, _) in usage.items()}
    # Shared memory counts as far as it is in use at all.
    sizes["shared memory"] = sum(path.stat().st_blocks for path in server.regions()) // 2
    threads, files = (sum(numbers) for numbers in list(zip(*usage.values(), strict=True))[1:])
    return Sample(done, sizes, threads, files)


def use(pid: int) -> tuple[int, int, int]:
    """Resident memory in KB, threads, and open files of a process."""
    process = psutil.Process(pid)
    return process.memory_info().rss // 1024, process.num_threads(), process.num_fds()
