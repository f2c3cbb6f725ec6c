from __future__ import annotations

import pytest
from lingbot_client import Disconnected, NoSession, PictureError, TritonError, WorldClient
from lingbot_client.picture import default_picture

from tests.unit.client.fake_server import FakeServer, complain, hang_up, refuse


async def test_a_request_goes_out_on_a_stream_of_its_own_unchanged(
    client: WorldClient, server: FakeServer
) -> None:
    responses = await client.request(31, start=True, end=True, chunk_index=0, keys=["w", "l"])
    assert [r.status for r in responses] == ["READY", "FRAMES", "FRAMES", "FRAMES", "CLOSED"]
    (request,) = server.requests
    assert (request.sequence_id, request.start, request.end) == (31, True, True)
    assert set(request.inputs) == {"chunk_index", "keys"}
    assert [stream.cancelled for stream in server.streams] == [True]


async def test_a_request_returns_error_codes_and_raises_where_there_is_none(
    client: WorldClient, server: FakeServer
) -> None:
    server.reactions["start"] = refuse("SESSION_LIMIT", "full")
    (response,) = await client.request("a", start=True)
    assert (response.status, response.message) == ("SESSION_LIMIT", "full")
    for reaction, kind in (
        (complain("must specify the START flag"), NoSession),
        (complain("unexpected shape"), TritonError),
        (hang_up, Disconnected),
    ):
        server.reactions["start"] = reaction
        with pytest.raises(kind):
            await client.request("a", start=True)
    assert all(stream.cancelled for stream in server.streams)


async def test_a_picture_that_is_none_fails_before_anything_is_sent(
    client: WorldClient, server: FakeServer
) -> None:
    with pytest.raises(PictureError):
        client.open_session(b"not a picture", "a street")
    assert server.streams == []


async def test_options_are_left_out_where_there_are_none(
    client: WorldClient, server: FakeServer
) -> None:
    async with client.open_session(default_picture(), "a street"):
        pass
    assert "options" not in server.requests[0].inputs


async def test_leaving_the_client_closes_its_transport(
    client: WorldClient, server: FakeServer
) -> None:
    async with client:
        assert await client.server_info() is server.info
        assert not server.closed
    assert server.closed
