from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest
from lingbot_client import (
    Cancelled,
    Disconnected,
    Duplicate,
    NoSession,
    ProtocolError,
    SessionLimit,
    SessionOver,
    TritonError,
    WorldClient,
    WorldSession,
)
from lingbot_client.errors import BY_CODE, StatusError
from lingbot_client.transport import Request, Response
from PIL import Image

from tests.unit.client import fake_server
from tests.unit.client.fake_server import (
    FakeServer,
    FakeStream,
    complain,
    drop,
    hang_up,
    ignore,
    refuse,
    settle,
)

PICTURE = Image.new("RGB", (24, 16), (10, 20, 30))
NO_START = "sequence 31 to model 'orchestrator' must specify the START flag on the first request"
ENDING = [kind for kind in BY_CODE.values() if kind.ends_session]
HARMLESS = [kind for kind in BY_CODE.values() if not kind.ends_session]


def open_session(client: WorldClient, close_timeout: float = 5.0) -> WorldSession:
    return client.open_session(PICTURE, "a street", close_timeout=close_timeout, seed=7)


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
        server.release(len(server.held))


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
        server.release(len(server.held))
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
        server.release(len(server.held))
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
        del server.held[1:3]  # two of three parts
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


async def test_a_sequence_that_somebody_ended_is_started_again(
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


async def test_an_answer_to_no_request_is_a_protocol_error(
    client: WorldClient, server: FakeServer
) -> None:
    async with open_session(client) as session:
        server.streams[0].deliver(Response("99", final=True))
        with pytest.raises(ProtocolError, match="99"):
            await session.next_part()


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


async def test_a_request_of_any_kind_returns_its_answers(
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
