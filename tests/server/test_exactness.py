"""The real network behind the real server: nothing that overlaps changes a single bit."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from lingbot_client import WorldClient

from lingbot_triton.triton.scrape import scrape
from lingbot_triton.triton.server import ServerProcess
from tests.server.conftest import StartServer
from tests.server.play import eventually, picture, play, reported, video

STEADY = "lingbot_steady_conditions_total"


@pytest.fixture(scope="module")
def server(shared_server: StartServer) -> ServerProcess:
    """Without the cache of conditions, or sessions would only repeat the first one's."""
    return shared_server(condition_cache_bytes=0)


@pytest.fixture(scope="module")
def alone(server: ServerProcess) -> dict[int, np.ndarray[Any, Any]]:
    """Frames by seed, of sessions that had the server for themselves."""

    async def scenario() -> dict[int, np.ndarray[Any, Any]]:
        async with WorldClient(server.grpc) as client:
            return {seed: video(await play(client, seed=seed)) for seed in (1, 2, 3)}

    return asyncio.run(scenario())


def test_sessions_differ_by_their_seed(alone: dict[int, np.ndarray[Any, Any]]) -> None:
    assert alone[1].shape == (57, 64, 96, 3)
    assert not np.array_equal(alone[1], alone[2])
    assert np.ptp(alone[1]) > 50


def test_sessions_at_once_equal_each_alone(
    server: ServerProcess, alone: dict[int, np.ndarray[Any, Any]]
) -> None:
    async def scenario() -> None:
        async with WorldClient(server.grpc) as client:
            together = await asyncio.gather(*(play(client, seed=seed) for seed in alone))
        for seed, chunks in zip(alone, together, strict=True):
            np.testing.assert_array_equal(video(chunks), alone[seed])

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "options",
    [
        {"prefetch_depth": 0},
        {"prefetch_depth": 0, "commit_inline": True, "decode_frames": 3},
        {"decode_frames": 2},
        {"ahead": 2},
        {"ahead": 2, "decode_frames": 3},
    ],
    ids=str,
)
def test_what_overlaps_changes_no_bit(
    server: ServerProcess, alone: dict[int, np.ndarray[Any, Any]], options: dict[str, Any]
) -> None:
    async def scenario() -> None:
        async with WorldClient(server.grpc) as client:
            chunks = await play(client, seed=2, **options)
        np.testing.assert_array_equal(video(chunks), alone[2])
        parts = -(-3 // options.get("decode_frames", 1))
        assert [len(chunk.parts) for chunk in chunks] == [parts] * 5

    asyncio.run(scenario())


def test_poses_steer_like_the_keys_they_come_from(
    server: ServerProcess, alone: dict[int, np.ndarray[Any, Any]]
) -> None:
    """Standing still is the identity pose, whichever way it is said."""
    still = np.tile(np.eye(4, dtype=np.float32), (3, 1, 1))

    async def scenario() -> None:
        async with WorldClient(server.grpc) as client:
            by_keys = video(await play(client, ("", "")))
            async with client.open_session(picture(), "a castle on a hill") as session:
                chunks = []
                for _ in range(2):
                    await session.send(poses=still)
                    chunks.append(await session.next_chunk())
                    assert chunks[-1].keys is None
            np.testing.assert_array_equal(video(chunks), by_keys)

    asyncio.run(scenario())


def test_a_long_session_stops_encoding_when_the_condition_is_constant(
    server: ServerProcess,
) -> None:
    """40 chunks in a window, all but the first eleven served by the steady condition."""
    keys = ["w", "", "l", "a"] * 10
    small = {"kv_window_frames": 6, "max_area": 32 * 32}

    async def whole(client: WorldClient, **options: Any) -> tuple[Any, dict[str, Any]]:
        options |= small
        async with client.open_session(picture(32, 32), "a hill", **options) as session:
            frames = []
            for held in keys:
                await session.send(held)
                frames.append((await session.next_chunk()).frames)
        assert session.summary is not None
        return np.concatenate(frames), session.summary

    async def scenario() -> None:
        async with WorldClient(server.grpc) as client:
            counted = scrape(server.metrics)[STEADY]
            frames, summary = await whole(client)
            assert summary["condition_calls"] <= 11
            assert summary["steady_chunks"] >= 29
            counted += summary["steady_chunks"]
            await eventually(lambda: scrape(server.metrics)[STEADY] == counted)
            encoded_all, summary = await whole(client, reuse_steady_condition=False)
            assert summary["condition_calls"] >= 40
            assert summary["steady_chunks"] == 0
            await reported(server, client)
            assert scrape(server.metrics)[STEADY] == counted
        np.testing.assert_array_equal(frames, encoded_all)

    asyncio.run(scenario())
