from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from lingbot_client import WorldClient
from lingbot_client.figures import ChunkSample
from lingbot_client.frames import FramePart
from lingbot_client.pace import Gate, Pace, Played, play_session

from tests.unit.client.fake_server import FakeServer, hang_up, ignore, refuse, settle

KEYS = ("w", "a")
PICTURE = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(autouse=True)
def _any_bytes_are_a_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lingbot_client.client.encode_picture", lambda picture: picture)


def play(server: FakeServer, pace: Pace, **arguments: Any) -> Played:
    async def run() -> Played:
        async with WorldClient(transport=server) as client:
            session = client.open_session(PICTURE, "a street")
            return await play_session(session, KEYS, pace, Gate(1), **arguments)

    return asyncio.run(asyncio.wait_for(run(), 60))


def keys_seen(server: FakeServer) -> list[bytes]:
    return [bytes(r.inputs["keys"][0]) for r in server.requests if "keys" in r.inputs]


def test_each_chunk_becomes_a_sample_with_both_clocks(server: FakeServer) -> None:
    played = play(server, Pace(3))
    assert [sample.index for sample in played.samples] == [0, 1, 2]
    assert [sample.frames for sample in played.samples] == [9, 12, 12]
    assert all(sample.ok for sample in played.samples)
    assert all(s.sent_at <= s.first_at <= s.last_at for s in played.samples)
    assert played.samples[1].server_ms == {
        "first_frames": 100.0, "whole_chunk": 300.0, "condition_wait": 0.5,
    }  # fmt: skip
    assert played.summary == {"reason": "end", "chunks": 3}


def test_keys_repeat_from_the_start(server: FakeServer) -> None:
    play(server, Pace(5))
    assert keys_seen(server) == [b"w", b"a", b"w", b"a", b"w"]


def test_the_person_thinks_between_chunks_but_not_before_the_first(server: FakeServer) -> None:
    samples = play(server, Pace(3, think=0.05)).samples
    assert all(after.sent_at - before.last_at >= 0.05 for before, after in pairwise(samples))
    play(server, Pace(1, think=3600))


@pytest.mark.parametrize(("ahead", "sent"), [(False, [0]), (True, [0, 1])])
def test_ahead_the_next_control_leaves_before_the_chunk_is_there(
    server: FakeServer, ahead: bool, sent: list[int]
) -> None:
    server.reactions[0] = ignore

    async def run() -> None:
        async with WorldClient(transport=server) as client:
            session = client.open_session(PICTURE, "a street")
            playing = asyncio.create_task(play_session(session, KEYS, Pace(4, 0, ahead), Gate(1)))
            await settle()
            assert server.chunk_indices == sent
            playing.cancel()
            await asyncio.wait([playing])

    asyncio.run(asyncio.wait_for(run(), 60))


def test_after_an_error_the_rest_of_the_session_has_failed(server: FakeServer) -> None:
    server.reactions[2] = refuse("STAGE_FAILED", "denoise failed")
    seen: list[ChunkSample] = []
    samples = play(server, Pace(5), on_chunk=seen.append).samples
    assert [sample.ok for sample in samples] == [True, True, False, False, False]
    assert samples[2].error == "denoise failed"
    assert [sample.index for sample in seen] == [0, 1, 2, 3, 4]


def test_a_failed_chunk_took_from_its_sending_until_its_error(server: FakeServer) -> None:
    server.reactions[1] = hang_up
    failed = play(server, Pace(2)).samples[1]
    assert not failed.ok
    assert failed.sent_at < failed.last_at
    assert failed.first_at == float("inf")


def test_a_session_that_does_not_open_has_failed_with_all_its_chunks(server: FakeServer) -> None:
    server.reactions["start"] = refuse("SESSION_LIMIT", "8 sessions are open")
    played = play(server, Pace(3))
    assert played.errors == ["8 sessions are open"] * 3


def test_a_session_that_does_not_open_keeps_no_other_at_the_gate(server: FakeServer) -> None:
    server.reactions["start"] = refuse("SESSION_LIMIT", "8 sessions are open")

    async def run() -> list[Played]:
        gate = Gate(2)
        async with WorldClient(transport=server) as client:
            sessions = [client.open_session(PICTURE, "a street") for _ in range(2)]
            return await asyncio.gather(
                *(play_session(session, KEYS, Pace(2), gate) for session in sessions)
            )

    played = asyncio.run(asyncio.wait_for(run(), 60))
    assert [len(one.errors) for one in played] == [2, 0]


def test_what_a_check_finds_is_the_chunks_error(server: FakeServer) -> None:
    def make(ready: dict[str, Any]) -> Callable[[FramePart], str] | None:
        assert ready["model"] == "fake"
        return lambda part: "wrong" if (part.chunk_index, part.part) == (1, 2) else ""

    samples = play(server, Pace(3), check=make).samples
    assert [sample.error for sample in samples] == ["", "wrong", ""]
