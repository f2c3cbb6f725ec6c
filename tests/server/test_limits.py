"""Whatever a client may make large is bounded, and what is refused has taken nothing."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest
from lingbot_client import WorldClient, errors

from lingbot_triton.triton.server import ServerProcess
from tests.server.conftest import StartServer
from tests.server.play import PROMPT, encoded, eventually, picture, play, reported, sessions
from tests.server.workers import SMALL, metric, states

OPENINGS = ("prompt", "open condition", "open denoise", "open decode")
FLOOD = 10_000


@pytest.fixture(scope="module")
def server(shared_server: StartServer) -> ServerProcess:
    return shared_server(simulated="seed-4xh100", simulated_scale=0.05, max_sessions=4)


def test_a_session_too_many_is_refused_before_any_worker_hears_of_it(
    server: ServerProcess,
) -> None:
    def opened() -> list[float]:
        return [metric(server, f'lingbot_stage_seconds_count{{stage="{one}"}}') for one in OPENINGS]

    async def scenario() -> None:
        async with WorldClient(server.grpc) as client:
            await reported(server, client)
            empty = opened()
            held = [client.open_session(picture(), PROMPT, **SMALL) for _ in range(4)]
            await asyncio.gather(*(session.open() for session in held))
            await eventually(lambda: states(server, "decode") == {"decode_0_0": 4})
            await reported(server, client)
            before = opened()
            assert before == [count + 4 for count in empty]
            with pytest.raises(errors.SessionLimit, match="4 sessions are open, at most 4 may be"):
                await client.open_session(picture(), PROMPT, **SMALL).open()
            await reported(server, client)
            assert opened() == before
            for session in held:
                await session.close()

    asyncio.run(scenario())


HUGE: dict[str, tuple[dict[str, Any], str]] = {
    "picture": ({"image": bytes(17 * 2**20)}, "bytes; at most 16777216 are taken"),
    "prompt": ({"prompt": "a" * 2**20}, "prompt has 1048576 bytes; at most 16384"),
    "keys": ({"keys": ["w"] * 100_000, "chunk_index": 0}, "keys holds 100000 strings"),
}
"""Some that Triton has to carry; `tests/unit` has every bound."""


@pytest.mark.parametrize("case", HUGE)
def test_what_is_huge_is_refused_in_a_short_sentence(server: ServerProcess, case: str) -> None:
    changes, sentence = HUGE[case]

    async def scenario() -> None:
        async with WorldClient(server.grpc) as client:
            inputs = {"image": encoded(picture()), "prompt": "a hill"} | changes
            answers = await client.request("huge", start=True, end=True, **inputs)
            assert answers[0].status == "BAD_REQUEST"
            assert sentence in answers[0].message
            assert len(answers[0].message) < 700

    asyncio.run(scenario())
    asyncio.run(eventually(lambda: sessions(server) == 0))


def _resident(server: ServerProcess) -> int:
    """Bytes that the server's processes keep in memory."""
    pages = sum(
        int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in server.processes()
    )
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_a_flood_of_controls_is_refused_and_harms_nobody(server: ServerProcess) -> None:
    async def scenario() -> None:
        async with WorldClient(server.grpc) as client, WorldClient(server.grpc) as other:
            await play(other, ["w"] * 5, **SMALL)
            before = _resident(server)
            flooding = client.open_session(picture(), PROMPT, **SMALL)
            await flooding.open()
            flood = [flooding.request(chunk_index=0, keys=["w"]) for _ in range(FLOOD)]
            answering = asyncio.ensure_future(_gather(flood))
            slowest = 0.0
            endless = {"max_area": 64 * 96, "kv_window_frames": 9}
            async with other.open_session(picture(), PROMPT, **endless) as session:
                while not answering.done():
                    started = time.monotonic()
                    await session.send("w")
                    await session.next_chunk()
                    slowest = max(slowest, time.monotonic() - started)
            statuses = await answering
            assert statuses.count("FRAMES") == 1
            assert statuses.count("DUPLICATE") == FLOOD - 1
            assert slowest < 15, "a chunk takes 0.06 s alone"
            assert _resident(server) - before < 300 * 2**20
            await flooding.close()
        await eventually(lambda: metric(server, "lingbot_calls_in_flight") == 0)

    asyncio.run(scenario())


async def _gather(requests: list[Any]) -> list[str]:
    answers = await asyncio.gather(*requests)
    return [each[0].status for each in answers]
