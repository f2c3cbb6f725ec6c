from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest
from lingbot_client import (
    WorldClient,
    WorldSession,
)

from tests.unit.client import fake_server
from tests.unit.client.fake_server import (
    PICTURE,
    FakeServer,
    open_session,
    settle,
)


async def test_opening_sends_picture_prompt_and_options_once(
    client: WorldClient, server: FakeServer
) -> None:
    async with open_session(client) as session:
        assert session.ready == fake_server.READY
        await session.send("w")
    start, control, end = server.requests
    assert (start.start, start.end) == (True, False)
    assert start.inputs["prompt"].tolist() == [b"a street"]
    assert start.inputs["options"].tolist() == [b'{"seed": 7}']
    assert start.inputs["image"][0].startswith(b"\x89PNG")
    assert set(control.inputs) == {"token", "chunk_index", "keys"}
    assert (end.start, end.end, set(end.inputs)) == (False, True, {"token"})


async def test_every_request_carries_the_session_and_its_token(
    client: WorldClient, server: FakeServer
) -> None:
    for _ in range(2):
        async with open_session(client) as session:
            await session.send("w")
            await session.request(chunk_index=9)
    assert len(server.requests) == 8
    ids = [request.sequence_id for request in server.requests]
    tokens = [request.inputs["token"][0] for request in server.requests]
    assert len(set(ids[:4])) == len(set(ids[4:])) == 1
    assert len(set(tokens[:4])) == len(set(tokens[4:])) == 1
    assert ids[0] != ids[4]
    assert tokens[0] != tokens[4]


@pytest.mark.parametrize("sequence_id", [31, "mine"])
async def test_a_session_takes_a_given_id_and_token(
    client: WorldClient, server: FakeServer, sequence_id: int | str
) -> None:
    async with client.open_session(PICTURE, "", sequence_id=sequence_id, token="t") as session:
        assert session.id == sequence_id
    assert [request.sequence_id for request in server.requests] == [sequence_id] * 2
    assert [request.inputs["token"][0] for request in server.requests] == [b"t"] * 2


async def test_parts_come_one_by_one_and_the_end_follows_finish(client: WorldClient) -> None:
    before = time.monotonic()
    async with open_session(client) as session:
        await session.send("wl")
        await session.send()
        session.finish()
        parts = [part async for part in session]
    assert [(p.chunk_index, p.part, p.parts) for p in parts] == [
        (chunk, part, 3) for chunk in (0, 1) for part in (0, 1, 2)
    ]
    assert [p.frame_index for p in parts] == [0, 1, 5, 9, 13, 17]
    assert [p.info["keys"] for p in parts] == ["wl"] * 3 + [""] * 3
    assert parts[0].frames.shape == (1, 16, 24, 3)
    assert before <= parts[0].sent_at <= parts[0].received_at <= time.monotonic()


async def test_whole_chunks_join_their_parts(client: WorldClient) -> None:
    async with open_session(client) as session:
        await session.send("w")
        await session.send(poses=np.eye(4)[None].repeat(3, axis=0))
        session.finish()
        first, second = [chunk async for chunk in session.chunks()]
    assert (first.chunk_index, first.frame_index, first.keys) == (0, 0, "w")
    assert (second.chunk_index, second.frame_index, second.keys) == (1, 9, None)
    assert first.frames[:, 0, 0, 0].tolist() == [0] + [1] * 4 + [2] * 4
    assert len(second.frames) == 12
    assert (first.first_frame_ms, first.last_frame_ms, first.condition_wait_ms) == (100, 300, 0.5)


async def test_poses_of_another_count_are_refused_before_they_are_sent(
    client: WorldClient, server: FakeServer
) -> None:
    async with open_session(client) as session:
        with pytest.raises(ValueError, match="has 4 poses; a chunk of this model takes 3"):
            await session.send(poses=np.eye(4)[None].repeat(4, axis=0))
        assert server.chunk_indices == []
        assert await session.send(poses=np.eye(4)[None].repeat(3, axis=0)) == 0
        assert len((await session.next_chunk()).frames) == 9


async def test_a_chunk_is_whole_even_if_some_parts_were_read_before(
    client: WorldClient, server: FakeServer
) -> None:
    async with open_session(client) as session:
        server.hold = True
        await session.send("w")
        server.release(2)
        assert (await session.next_part()).part == 0
        with pytest.raises(asyncio.TimeoutError):  # interrupted after part 1
            await asyncio.wait_for(session.next_chunk(), 0.01)
        server.hold = False
        server.release(2)
        assert len((await session.next_chunk()).frames) == 9


async def test_closed_loop_goes_on_for_ever(client: WorldClient) -> None:
    async with open_session(client) as session:
        for index in range(20):
            assert await session.send("w") == index
            assert (await session.next_chunk()).chunk_index == index
    assert session.summary == {"reason": "end", "chunks": 20}


async def test_send_keeps_within_the_window(client: WorldClient, server: FakeServer) -> None:
    async with open_session(client) as session:
        server.hold = True
        sending = asyncio.create_task(send_all(session, 4))
        await settle()
        assert server.chunk_indices == [0, 1]
        server.release(1)  # the first part of chunk 0
        await settle()
        assert server.chunk_indices == [0, 1, 2]
        server.release(3)  # the rest of chunk 0
        await settle()
        assert server.chunk_indices == [0, 1, 2]
        server.release(1)  # the first part of chunk 1
        await sending
        assert server.chunk_indices == [0, 1, 2, 3]
        server.hold = False
        server.release(len(server.waiting))


async def send_all(session: WorldSession, count: int) -> None:
    for _ in range(count):
        await session.send("w")


async def test_concurrent_senders_get_successive_indices(
    client: WorldClient, server: FakeServer
) -> None:
    async with open_session(client) as session:
        assert await asyncio.gather(*(session.send(key) for key in "wasd")) == [0, 1, 2, 3]
    keys = [r.inputs["keys"][0] for r in server.requests if "keys" in r.inputs]
    assert keys == [b"w", b"a", b"s", b"d"]


async def test_concurrent_senders_share_the_window(client: WorldClient, server: FakeServer) -> None:
    async with open_session(client) as session:
        server.hold = True
        senders = [asyncio.create_task(session.send("w")) for _ in range(4)]
        await settle()
        assert server.chunk_indices == [0, 1]
        server.release(1)  # the first part of chunk 0
        await settle()
        assert server.chunk_indices == [0, 1, 2]
        server.hold = False
        server.release(len(server.waiting))
        await asyncio.gather(*senders)


async def test_send_waits_until_the_session_is_open(
    client: WorldClient, server: FakeServer
) -> None:
    server.hold = True
    session = open_session(client)
    opening = asyncio.create_task(session.open())
    sending = asyncio.create_task(session.send("w"))
    await settle()
    assert server.chunk_indices == []
    server.hold = False
    server.release(2)
    await opening
    assert await sending == 0
    await session.close()
