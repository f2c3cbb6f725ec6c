"""Clients that are killed, cut off or silent: their sessions go, and their ids are free."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from lingbot_client import WorldClient, errors

from lingbot_triton.simulated.marks import Mark, fingerprint, read_mark
from lingbot_triton.simulated.stages import STALLING_SEED
from lingbot_triton.triton.scrape import scrape
from lingbot_triton.triton.server import ServerProcess
from tests.server.conftest import StartServer
from tests.server.play import admitted, encoded, eventually, picture, sessions
from tests.server.workers import SMALL, states

IDLE = 2.0
START = {"start": True, "image": encoded(picture()), "prompt": "a hill", "options": SMALL}

STALL = 3
"""Seconds that each chunk of a client takes more, if it vanishes during one."""

# A client in a process of its own: opens a session, plays some chunks, and says when to kill it.
CLIENT = """
import asyncio, sys
from lingbot_client import WorldClient
from PIL import Image

async def main(url, name, seed, chunks, last):
    async with WorldClient(url) as client:
        session = client.open_session(Image.new("RGB", (96, 64)), "a hill", sequence_id=name,
            token="mine", seed=seed, max_area=6144, chunk_count=200)
        await session.open()
        for _ in range(chunks):
            await session.send("w")
            await session.next_chunk()
        if last == "busy":
            await session.send("w")
            (answer,) = await session.request(chunk_index=chunks)
            assert answer.status == "DUPLICATE"  # so the server has the control
        print("now", flush=True)
        await asyncio.sleep(3600)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]))
"""


@pytest.fixture(scope="module")
def server(shared_server: StartServer) -> ServerProcess:
    return shared_server(simulated="seed-4xh100", simulated_scale=0.3, session_idle_seconds=IDLE)


@contextmanager
def _client(server: ServerProcess, name: str, chunks: int, last: str) -> Iterator[int]:
    """A client process that has come to the moment at which it is to vanish."""
    seed = STALLING_SEED + STALL if last == "busy" else 1
    command = [sys.executable, "-c", CLIENT, server.grpc, name, str(seed), str(chunks), last]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "now\n"
            yield process.pid
        finally:
            process.kill()


def _ends(server: ServerProcess) -> dict[str, str]:
    """Why each session ended, by its correlation id, as the log says."""
    found = re.findall(r'correlation_id\\": \\"(\w+)\\", \\"reason\\": \\"(\w+)', server.output())
    return dict(found)


async def _ended_since(server: ServerProcess, before: dict[str, str]) -> list[str]:
    """Why sessions ended that are not in `before`; the log is written after the metrics."""
    await eventually(lambda: _ends(server).keys() > before.keys())
    return [reason for name, reason in _ends(server).items() if name not in before]


async def _gone(server: ServerProcess, seconds: float) -> None:
    await eventually(lambda: sessions(server) == 0, seconds)
    for stage in ("condition", "denoise", "decode"):
        await eventually(lambda stage=stage: set(states(server, stage).values()) == {0})
    for name in ("lingbot_conditions_alive", "lingbot_calls_in_flight"):
        await eventually(lambda name=name: scrape(server.metrics)[name] == 0)


@pytest.mark.parametrize(
    ("chunks", "last"),
    [(0, "idle"), (0, "busy"), (1, "idle")],
    ids=["before its first control", "during a chunk", "between chunks"],
)
def test_a_killed_client_leaves_nothing(server: ServerProcess, chunks: int, last: str) -> None:
    before = _ends(server)
    with _client(server, "killed", chunks, last) as pid:
        asyncio.run(eventually(lambda: sessions(server) == 1))
        os.kill(pid, signal.SIGKILL)
        asyncio.run(_gone(server, IDLE + 2 + 10))  # and 10 s for a machine that is busy
        # While something is unanswered the server sees it at once, else by the silence.
        reasons = asyncio.run(_ended_since(server, before))
        assert reasons == ["cancelled" if last == "busy" else "idle"]


def test_a_silent_client_loses_its_session_and_is_told(server: ServerProcess) -> None:
    """Stopped, it answers nothing and closes nothing, like one whose network is gone."""
    with _client(server, "silent", 1, "idle") as pid:
        os.kill(pid, signal.SIGSTOP)
        asyncio.run(_gone(server, IDLE + 2 + 10))

        async def late() -> None:
            async with WorldClient(server.grpc) as client:
                (answer,) = await client.request("silent", token="mine", chunk_index=1)
                assert answer.status == "NO_SESSION"

        asyncio.run(late())


def test_a_cancelled_stream_frees_its_session_at_once(server: ServerProcess) -> None:
    before = _ends(server)

    async def scenario() -> None:
        async with WorldClient(server.grpc) as client:
            stalling = {"seed": STALLING_SEED + STALL, **SMALL}
            session = client.open_session(picture(), "a hill", **stalling)
            await session.open()
            await session.send("w")
            await admitted(session)
        await _gone(server, 10)
        assert await _ended_since(server, before) == ["cancelled"], "not by the silence after it"
        with pytest.raises(errors.WorldError):
            await session.next_chunk()

    asyncio.run(scenario())


@pytest.mark.parametrize("last", ["idle", "busy"])
def test_the_id_is_free_at_once_and_meets_nothing_of_the_old_session(
    server: ServerProcess, last: str
) -> None:
    async def scenario() -> None:
        async with WorldClient(server.grpc) as client:
            again = START | {"options": {"seed": 7, **SMALL}, "token": "mine"}
            answers = await client.request("again", chunk_index=0, keys=["w"], **again)
            assert [answer.status for answer in answers] == ["READY"] + ["FRAMES"] * 3
            frames = [frame for answer in answers[1:] for frame in answer.frames]
            assert [read_mark(frame) for frame in frames] == [
                Mark(fingerprint(7), 0, index) for index in range(9)
            ]
            (*_, closed) = await client.request("again", token="mine", end=True)
            assert (closed.status, closed.info["chunks"]) == ("CLOSED", 1)

    with _client(server, "again", 1, last) as pid:
        os.kill(pid, signal.SIGKILL)
        asyncio.run(scenario())
        asyncio.run(_gone(server, 10))
