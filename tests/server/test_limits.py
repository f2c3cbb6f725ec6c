"""Whatever a client may make large is bounded, and what is refused has taken nothing."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lingbot_client import WorldClient, errors

from lingbot_triton.triton.server import ServerProcess
from tests.checkpoints import GOLDEN_CHECKPOINT
from tests.server.conftest import StartServer
from tests.server.play import PROMPT, encoded, eventually, picture, play, reported, sessions
from tests.server.workers import SMALL, metric, states

STAGES = ("condition", "denoise", "decode")
OPENINGS = ("prompt", "open condition", "open denoise", "open decode")
FLOOD = 10_000


@pytest.fixture(scope="module")
def server(shared_server: StartServer) -> ServerProcess:
    return shared_server(simulated="seed-4xh100", simulated_scale=0.05, max_sessions=4)


@pytest.fixture(scope="module")
def narrow(shared_server: StartServer) -> ServerProcess:
    """The tiny model, with memory for two sessions of 64x96 pixels and 7 chunks."""
    return shared_server(
        checkpoint=str(GOLDEN_CHECKPOINT), threads=1, max_area=64 * 96, kv_budget_bytes=5 * 2**20
    )


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


def test_memory_is_refused_before_it_is_allocated(narrow: ServerProcess) -> None:
    async def scenario() -> None:
        async with WorldClient(narrow.grpc) as client:
            held = [client.open_session(picture(), PROMPT) for _ in range(2)]
            for session in held:
                await session.open()
            with pytest.raises(errors.SessionLimit, match=r"session needs .* MiB of memory; "):
                await client.open_session(picture(), PROMPT).open()
            with pytest.raises(errors.SessionLimit, match=r"session needs .* MiB of memory; "):
                await client.open_session(picture(), PROMPT, kv_window_frames=1000).open()
            for stage in STAGES:
                await eventually(lambda stage=stage: set(states(narrow, stage).values()) == {2})
            await eventually(lambda: sessions(narrow) == 2)
            await held.pop().close()
            assert len(await play(client, ["w"])) == 1
            await held.pop().close()

    asyncio.run(scenario())


HUGE: dict[str, tuple[dict[str, Any], str]] = {
    "bytes of a picture": ({"image": bytes(17 * 2**20)}, "bytes; at most 16777216 are taken"),
    "prompt": ({"prompt": "a" * 2**20}, "prompt has 1048576 bytes; at most 16384"),
    "options": ({"options": b" " * 2**20}, "options has 1048576 bytes; at most 16384"),
    "depth of options": ({"options": b"[" * 16_000}, "options are not valid JSON"),
    "digits of an option": ({"options": b'{"seed":1' + b"0" * 4_000 + b"}"}, "'seed' is 1000"),
    "value of an option": ({"options": b'{"shift":1' + b"0" * 400 + b"}"}, "finite number"),
    "name of an option": ({"options": {"a" * 10_000: 1}}, "unknown option 'aaa"),
    "token": ({"token": "t" * 2**20}, "token has 1048576 bytes; at most 256"),
    "poses": ({"poses": np.zeros((10_000, 4, 4), np.float32), "chunk_index": 0}, "[10000, 4, 4]"),
    "keys": ({"keys": ["w"] * 100_000, "chunk_index": 0}, "keys holds 100000 strings"),
    "one key": ({"keys": ["x" * 2**20], "chunk_index": 0}, "unknown key 'x'"),
    "chunk index": ({"chunk_index": 2**31 - 1}, "chunk 2147483647 is not next"),
}


@pytest.mark.parametrize("case", HUGE)
def test_what_is_huge_is_refused_in_a_short_sentence(server: ServerProcess, case: str) -> None:
    changes, sentence = HUGE[case]

    async def scenario() -> None:
        async with WorldClient(server.grpc) as client:
            inputs = {"image": encoded(picture()), "prompt": "a hill"} | changes
            answers = await client.request("huge", start=True, end=True, **inputs)
            assert answers[0].status in ("BAD_REQUEST", "OUT_OF_ORDER")
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
