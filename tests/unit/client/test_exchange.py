from __future__ import annotations

import pytest
from lingbot_client import Disconnected, NoSession, ProtocolError, TritonError
from lingbot_client.exchange import Exchange
from lingbot_client.transport import RawResponse

from tests.unit.client.fake_server import FakeServer, complain, hang_up, ignore, outputs, settle


async def test_responses_find_their_request_whatever_the_order(server: FakeServer) -> None:
    exchange = Exchange(server.open_stream())
    server.hold = True
    calls = [exchange.call(name, start=True, inputs={"chunk_index": 0}) for name in "ab"]
    server.waiting = server.waiting[5:] + server.waiting[:5]  # the second request's responses first
    server.release(10)
    for call in calls:
        responses = await call.collect()
        assert [r.status for r in responses] == ["READY", "FRAMES", "FRAMES", "FRAMES"]
    assert [r.id for r in server.requests] == ["1", "2"]
    await exchange.close()


async def test_a_call_that_ended_stays_ended(server: FakeServer) -> None:
    exchange = Exchange(server.open_stream())
    call = exchange.call("a", start=True, inputs={})
    assert len(await call.collect()) == 1
    assert await call.collect() == []
    server.reactions["end"] = complain("unexpected shape")
    call = exchange.call("a", end=True, inputs={})
    for _ in range(2):
        with pytest.raises(TritonError):
            await call.collect()
    await exchange.close()


async def test_an_error_without_an_id_goes_to_the_oldest_call_without_a_response(
    server: FakeServer,
) -> None:
    stream = server.open_stream()
    exchange = Exchange(stream)
    server.reactions["start"] = lambda s, request: s.respond(request, outputs("READY"))
    half_served = exchange.call("a", start=True, inputs={})
    assert (await anext(half_served)).status == "READY"
    server.reactions["end"] = ignore
    unserved = exchange.call("a", end=True, inputs={})
    stream.deliver(RawResponse("", error="what is this", final=True))
    with pytest.raises(TritonError, match="what is this"):
        await unserved.collect()
    stream.deliver(RawResponse("", error="and this", final=True))
    with pytest.raises(TritonError, match="and this"):
        await half_served.collect()
    await exchange.close()


async def test_an_error_with_an_id_goes_to_its_call(server: FakeServer) -> None:
    stream = server.open_stream()
    exchange = Exchange(stream)
    server.reactions["start"] = server.reactions["end"] = ignore
    first = exchange.call("a", start=True, inputs={})
    second = exchange.call("a", end=True, inputs={})
    stream.deliver(RawResponse("2", error="what is this", final=True))
    with pytest.raises(TritonError):
        await second.collect()
    assert not first.first_response.is_set()
    await exchange.close()
    with pytest.raises(Disconnected):
        await first.collect()


async def test_what_breaks_the_stream_reaches_every_call_and_the_owner_once(
    server: FakeServer,
) -> None:
    errors: list[Exception] = []
    exchange = Exchange(server.open_stream(), on_break=errors.append)
    server.reactions["start"] = ignore
    waiting = exchange.call("a", start=True, inputs={})
    server.reactions["end"] = hang_up
    hanging = exchange.call("a", end=True, inputs={})
    for call in (waiting, hanging):
        with pytest.raises(Disconnected, match="lost"):
            await call.collect()
    with pytest.raises(Disconnected, match="lost"):
        exchange.call("a", inputs={})
    await exchange.close()
    assert [str(error) for error in errors] == ["the connection was lost"]


async def test_a_response_that_cannot_be_read_breaks_the_stream(server: FakeServer) -> None:
    exchange = Exchange(server.open_stream())
    server.reactions["start"] = lambda s, request: s.respond(request, {"info": outputs("")["info"]})
    with pytest.raises(ProtocolError, match="status"):
        await exchange.call("a", start=True, inputs={}).collect()
    await exchange.close()


async def test_a_stream_is_cut_off_only_with_a_request_unanswered(server: FakeServer) -> None:
    for reaction, polite in ((complain("must specify the START flag"), True), (ignore, False)):
        server.reactions["start"] = reaction
        exchange = Exchange(server.open_stream())
        call = exchange.call("a", start=True, inputs={})
        await settle()
        await exchange.close()
        assert server.streams[-1].finished is polite
        with pytest.raises(NoSession if polite else Disconnected):
            await call.collect()


async def test_a_server_that_does_not_end_a_finished_stream_is_not_waited_for(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lingbot_client.exchange.FINISH_TIMEOUT", 0.01)
    stream = server.open_stream()
    monkeypatch.setattr(stream, "finish", lambda: None)
    await Exchange(stream).close()
    assert stream.cancelled
