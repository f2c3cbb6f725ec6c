"""What goes wrong in a session, and which of it ends the session."""

from __future__ import annotations

import asyncio

import pytest
from lingbot_client import (
    Cancelled,
    Disconnected,
    NoSession,
    ProtocolError,
    SessionOver,
    TritonError,
    WorldClient,
)
from lingbot_client.errors import BY_CODE, StatusError
from lingbot_client.transport import RawResponse, Request

from tests.unit.client.fake_server import (
    FakeServer,
    FakeStream,
    complain,
    drop,
    hang_up,
    ignore,
    open_session,
    refuse,
    settle,
)

NO_START = "sequence 31 to model 'orchestrator' must specify the START flag on the first request"
ENDING = [kind for kind in BY_CODE.values() if kind.ends_session]
HARMLESS = [kind for kind in BY_CODE.values() if not kind.ends_session]


@pytest.mark.parametrize("kind", BY_CODE.values())
async def test_a_refused_opening_raises_and_still_frees_the_sequence(
    client: WorldClient, server: FakeServer, kind: type[StatusError]
) -> None:
    server.reactions["start"] = refuse(kind.code, "because")
    session = open_session(client)
    sending = asyncio.create_task(session.send("w"))
    with pytest.raises(kind, match="because"):
        async with session:
            pytest.fail("the session opened")
    with pytest.raises(SessionOver):
        await sending
    assert [request.end for request in server.requests] == [False, True]
    assert server.streams[0].cancelled


@pytest.mark.parametrize("kind", HARMLESS)
async def test_a_harmless_error_is_raised_in_its_turn_and_the_session_goes_on(
    client: WorldClient, server: FakeServer, kind: type[StatusError]
) -> None:
    async with open_session(client) as session:
        await session.send("w")
        server.reactions[1] = refuse(kind.code, "because")
        await session.send("a")
        assert (await session.next_chunk()).chunk_index == 0
        with pytest.raises(kind, match="because"):
            await session.next_chunk()
        if kind.code != "DUPLICATE":  # which says that 1 is taken
            assert await session.send("a") == 1
            assert (await session.next_chunk()).keys == "a"
    assert session.summary is not None


async def test_controls_behind_a_refused_one_are_refused_and_their_indices_used_again(
    client: WorldClient, server: FakeServer
) -> None:
    async with open_session(client) as session:
        server.reactions[0] = refuse("BAD_REQUEST")
        server.hold = True
        await session.send("x")
        await session.send("w")  # refused too: it skips chunk 0
        server.hold = False
        server.release(len(server.waiting))
        codes = []
        for _ in range(2):
            with pytest.raises(StatusError) as raised:
                await session.next_chunk()
            codes.append(raised.value.code)
        assert codes == ["BAD_REQUEST", "OUT_OF_ORDER"]
        assert [await session.send("w"), await session.send("w")] == [0, 1]
        assert [(await session.next_chunk()).chunk_index for _ in range(2)] == [0, 1]


@pytest.mark.parametrize("kind", ENDING)
async def test_an_error_that_ends_the_session_is_raised_to_reader_and_sender(
    client: WorldClient, server: FakeServer, kind: type[StatusError]
) -> None:
    async with open_session(client) as session:
        server.reactions[0] = refuse(kind.code, "because")
        await session.send("w")
        for _ in range(3):
            with pytest.raises(kind, match="because"):
                await session.next_chunk()
        with pytest.raises(kind, match="because"):
            await session.send("w")
    assert server.requests[-1].end


async def test_a_dropped_control_is_cancelled(client: WorldClient, server: FakeServer) -> None:
    async with open_session(client) as session:
        server.reactions[0] = drop
        await session.send("w")
        with pytest.raises(Cancelled):
            await session.next_chunk()
        assert await session.send("w") == 0


async def test_a_chunk_that_breaks_off_is_cancelled(
    client: WorldClient, server: FakeServer
) -> None:
    async with open_session(client) as session:
        server.hold = True
        await session.send("w")
        del server.waiting[1:3]  # two of three parts
        server.hold = False
        server.release(2)
        assert (await session.next_part()).part == 0
        with pytest.raises(Cancelled):
            await session.next_part()


async def test_a_triton_error_belongs_to_the_oldest_unanswered_control(
    client: WorldClient, server: FakeServer
) -> None:
    async with open_session(client) as session:
        await session.send("w")
        server.reactions[1] = complain("unexpected shape for input 'keys'")
        await session.send("a")
        assert (await session.next_chunk()).chunk_index == 0
        with pytest.raises(TritonError, match="unexpected shape"):
            await session.next_chunk()
        assert await session.send("a") == 1


async def test_a_sequence_that_another_client_ended_is_started_again(
    client: WorldClient, server: FakeServer
) -> None:
    async with open_session(client) as session:
        for index in (0, 1):
            server.reactions[index] = complain(NO_START)
            await session.send("w")
        chunks = [await session.next_chunk() for _ in range(2)]
        assert [chunk.chunk_index for chunk in chunks] == [0, 1]
        controls = [request for request in server.requests if "chunk_index" in request.inputs]
        assert [request.start for request in controls] == [False, False, True, True]
        assert "image" not in controls[-1].inputs
        assert bytes(controls[-1].inputs["token"][0]).decode() == session.token
        server.reactions["end"] = complain(NO_START)
    assert session.summary is not None
    assert [request.start for request in server.requests[-2:]] == [False, True]


async def test_a_session_that_is_gone_stays_gone(client: WorldClient, server: FakeServer) -> None:
    def gone(stream: FakeStream, request: Request) -> None:
        server.reactions[0] = refuse("NO_SESSION", "no session")
        complain(NO_START)(stream, request)

    async with open_session(client) as session:
        server.reactions[0] = gone
        await session.send("w")
        with pytest.raises(NoSession, match="no session"):
            await session.next_chunk()


async def test_a_sequence_that_cannot_be_started_again_ends_the_session(
    client: WorldClient, server: FakeServer
) -> None:
    def again(stream: FakeStream, request: Request) -> None:
        server.reactions[0] = complain(NO_START)
        complain(NO_START)(stream, request)

    async with open_session(client) as session:
        server.reactions[0] = again
        await session.send("w")
        with pytest.raises(NoSession):
            await session.next_chunk()
        with pytest.raises(NoSession):
            await session.send("w")


async def test_a_lost_connection_wakes_reader_and_sender(
    client: WorldClient, server: FakeServer
) -> None:
    async with open_session(client) as session:
        reading = asyncio.create_task(session.next_chunk())
        await settle()
        hang_up(server.streams[0], server.requests[0])
        with pytest.raises(Disconnected):
            await reading
        with pytest.raises(Disconnected):
            await session.send("w")
    assert session.summary is None


async def test_a_lost_connection_fails_every_control_on_its_way(
    client: WorldClient, server: FakeServer
) -> None:
    async with open_session(client) as session:
        server.reactions[0], server.reactions[1] = ignore, hang_up
        await session.send("w")
        await session.send("w")
        for _ in range(2):
            with pytest.raises(Disconnected):
                await session.next_part()


async def test_a_response_to_no_request_is_a_protocol_error(
    client: WorldClient, server: FakeServer
) -> None:
    async with open_session(client) as session:
        server.streams[0].deliver(RawResponse("99", final=True))
        with pytest.raises(ProtocolError, match="99"):
            await session.next_part()
