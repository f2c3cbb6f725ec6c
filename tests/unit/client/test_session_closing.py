"""How sessions are closed, by whom ever and however far they are."""

from __future__ import annotations

import asyncio

import pytest
from lingbot_client import (
    Cancelled,
    Duplicate,
    SessionLimit,
    SessionOver,
    WorldClient,
    WorldSession,
)

from tests.unit.client.fake_server import (
    FakeServer,
    drop,
    ignore,
    open_session,
    refuse,
    settle,
)


async def test_an_error_in_the_body_closes_the_session_and_stays_itself(
    client: WorldClient, server: FakeServer
) -> None:
    session = open_session(client)
    with pytest.raises(ZeroDivisionError):
        async with session:
            raise ZeroDivisionError
    assert server.requests[-1].end
    assert session.summary == {"reason": "end", "chunks": 0}
    assert server.streams[0].cancelled


async def test_a_cancelled_task_closes_its_session(client: WorldClient, server: FakeServer) -> None:
    async def wait_for_ever() -> None:
        async with open_session(client) as session:
            await session.next_chunk()

    task = asyncio.create_task(wait_for_ever())
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert server.requests[-1].end
    assert server.streams[0].cancelled


async def test_a_cancelled_opening_ends_the_session(
    client: WorldClient, server: FakeServer
) -> None:
    server.reactions["start"] = ignore
    opening = asyncio.create_task(open_session(client).open())
    await settle()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert [request.end for request in server.requests] == [False, True]
    assert server.streams[0].cancelled


async def test_closing_does_not_wait_for_ever(client: WorldClient, server: FakeServer) -> None:
    server.reactions["end"] = ignore
    async with open_session(client, close_timeout=0.01) as session:
        pass
    assert session.summary is None
    assert server.streams[0].cancelled


async def test_nothing_follows_a_close(client: WorldClient, server: FakeServer) -> None:
    async with open_session(client) as session:
        pass
    await session.close()
    assert sum(request.end for request in server.requests) == 1
    assert [part async for part in session] == []
    for attempt in (session.send("w"), session.next_chunk(), session.request()):
        with pytest.raises(SessionOver):
            await attempt
    with pytest.raises(RuntimeError, match="once"):
        await session.open()


async def test_closing_a_session_that_was_never_opened_wakes_its_sender(
    client: WorldClient, server: FakeServer
) -> None:
    session = open_session(client)
    sending = asyncio.create_task(session.send("w"))
    await settle()
    await session.close()
    with pytest.raises(SessionOver):
        await sending
    assert server.requests == []


async def test_a_finished_session_takes_no_more_controls(client: WorldClient) -> None:
    async with open_session(client) as session:
        session.finish()
        with pytest.raises(SessionOver):
            await session.send("w")


async def test_closing_while_another_task_reads_ends_its_iteration(client: WorldClient) -> None:
    async def read(session: WorldSession) -> list[int]:
        return [part.part async for part in session]

    async with open_session(client) as session:
        reading = asyncio.create_task(read(session))
        await session.send("w")
        await settle()
    assert await reading == [0, 1, 2]


async def test_a_request_of_any_kind_returns_its_responses(
    client: WorldClient, server: FakeServer
) -> None:
    async with open_session(client) as session:
        assert [a.status for a in await session.request(chunk_index=5)] == ["OUT_OF_ORDER"]
        frames = await session.request(chunk_index=0, keys=["w"], token=None)
        assert [a.status for a in frames] == ["FRAMES"] * 3
        assert set(server.requests[-1].inputs) == {"chunk_index", "keys"}
        server.reactions[1] = drop
        with pytest.raises(Cancelled):
            await session.request(chunk_index=1)


async def test_after_a_duplicate_the_next_index_is_sent(client: WorldClient) -> None:
    async with open_session(client) as session:
        await session.request(chunk_index=0, keys=["w"])  # behind the session's back
        assert await session.send("w") == 0
        with pytest.raises(Duplicate):
            await session.next_chunk()
        assert await session.send("w") == 1
        assert (await session.next_chunk()).chunk_index == 1


async def test_an_opening_refused_leaves_other_sessions_alone(
    client: WorldClient, server: FakeServer
) -> None:
    async with open_session(client) as session:
        server.reactions["start"] = refuse("SESSION_LIMIT")
        with pytest.raises(SessionLimit):
            await open_session(client).open()
        await session.send("w")
        assert (await session.next_chunk()).chunk_index == 0
