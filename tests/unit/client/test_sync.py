from __future__ import annotations

import threading

import pytest
from lingbot_client import SessionOver, StageFailed, SyncWorldClient
from lingbot_client.picture import default_picture

from tests.unit.client.fake_server import READY, FakeServer, refuse


def client_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "lingbot-client"]


def test_a_session_is_played_without_asyncio(server: FakeServer) -> None:
    with SyncWorldClient(transport=server) as client:
        with client.open_session(default_picture(), "a street", seed=3, token="t") as session:
            assert session.ready == READY
            assert session.token == "t"
            assert session.send("w") == 0
            assert len(session.next_chunk().frames) == 9
            session.send("a")
            assert session.next_part().part == 0
            assert [a.status for a in session.request(chunk_index=9)] == ["OUT_OF_ORDER"]
            session.send("s")
            session.finish()
            assert [(part.chunk_index, part.part) for part in session] == [
                (1, 1),
                (1, 2),
                (2, 0),
                (2, 1),
                (2, 2),
            ]
        assert session.summary == {"reason": "end", "chunks": 3}
    assert {request.sequence_id for request in server.requests} == {session.id}


def test_chunks_are_iterated_and_the_server_is_asked(server: FakeServer) -> None:
    with SyncWorldClient(transport=server) as client:
        assert client.server_info() is server.info
        assert [a.status for a in client.request(5, start=True)] == ["READY"]
        with client.open_session(default_picture(), "a street") as session:
            session.send("w")
            session.send("a")
            session.finish()
            assert [chunk.keys for chunk in session.chunks()] == ["w", "a"]
            with pytest.raises(SessionOver):
                session.next_chunk()


def test_errors_come_through_and_the_thread_is_joined(server: FakeServer) -> None:
    server.reactions[0] = refuse("STAGE_FAILED", "the decoder broke")
    with SyncWorldClient(transport=server) as client:
        assert client_threads() == ["lingbot-client"]
        with client.open_session(default_picture(), "a street") as session:
            session.send("w")
            with pytest.raises(StageFailed, match="the decoder broke"):
                session.next_chunk()
    assert client_threads() == []
    assert server.closed
    client.close()


def test_a_refused_opening_leaves_no_thread(server: FakeServer) -> None:
    server.reactions["start"] = refuse("STAGE_FAILED")
    with pytest.raises(StageFailed), SyncWorldClient(transport=server) as client:
        client.open_session(default_picture(), "a street").open()
    assert client_threads() == []
