"""The real transport against tritonclient's own messages, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc  # type: ignore[import-untyped]
import numpy as np
import pytest
from lingbot_client import Disconnected, ServerUnavailable
from lingbot_client.transport import Model, Request, Tensor
from lingbot_client.triton import TritonStream, TritonTransport
from tritonclient.grpc import service_pb2
from tritonclient.utils import serialize_byte_tensor


class FakeResponses:
    """What a stream of gRPC gives: messages, or an exception at the end."""

    def __init__(self, *items: Any) -> None:
        self._items = list(items)
        self.cancelled = False

    def __aiter__(self) -> FakeResponses:
        return self

    async def __anext__(self) -> Any:
        item = self._items.pop(0) if self._items else StopAsyncIteration()
        if isinstance(item, BaseException):
            raise item
        return item

    def cancel(self) -> None:
        self.cancelled = True


class FakeServer:
    """Called as `ModelStreamInfer` is."""

    def __init__(self, *items: Any) -> None:
        self.responses = FakeResponses(*items)
        self.requests: AsyncIterator[Any] | None = None

    def __call__(self, requests: AsyncIterator[Any]) -> FakeResponses:
        self.requests = requests
        return self.responses


def rpc_error(code: grpc.StatusCode) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), "refused")


def response(request_id: str, *, final: bool, **texts: bytes) -> Any:
    message = service_pb2.ModelInferResponse(id=request_id)
    message.parameters["triton_final_response"].bool_param = final
    for name, text in texts.items():
        message.outputs.add(name=name, datatype="BYTES", shape=[1])
        data = serialize_byte_tensor(np.array([text], dtype=object))
        message.raw_output_contents.append(data.item())
    return service_pb2.ModelStreamInferResponse(infer_response=message)


@pytest.mark.parametrize(("sequence", "kind"), [("mine", "string_param"), (12, "int64_param")])
async def test_a_request_carries_id_sequence_flags_and_tensors(
    sequence: int | str, kind: str
) -> None:
    server = FakeServer()
    stream = TritonStream(server, "here")
    inputs = {"chunk_index": np.array([3], np.int32), "keys": np.array([b"w", b"l"], object)}
    stream.send(Request("7", sequence, False, True, inputs))
    assert server.requests is not None
    sent = await anext(server.requests)
    assert (sent.model_name, sent.id) == ("orchestrator", "7")
    parameters = sent.parameters
    assert getattr(parameters["sequence_id"], kind) == sequence
    assert not parameters["sequence_start"].bool_param
    assert parameters["sequence_end"].bool_param
    assert parameters["triton_enable_empty_final_response"].bool_param
    tensors = [(t.name, t.datatype, list(t.shape)) for t in sent.inputs]
    assert tensors == [("chunk_index", "INT32", [1]), ("keys", "BYTES", [2])]
    assert list(sent.raw_input_contents) == [b"\3\0\0\0", b"\1\0\0\0w\1\0\0\0l"]


async def test_an_empty_tensor_is_sent_as_such() -> None:
    server = FakeServer()
    TritonStream(server, "here").send(
        Request("7", "mine", False, False, {"keys": np.array([], object)})
    )
    assert server.requests is not None
    sent = await anext(server.requests)
    assert (list(sent.inputs[0].shape), list(sent.raw_input_contents)) == ([0], [b""])


async def test_responses_are_read_with_their_outputs_and_final_flag() -> None:
    part = response("7", final=False, status=b"READY")
    stream = TritonStream(FakeServer(part, response("7", final=True)), "here")
    first, second = await stream.receive(), await stream.receive()
    assert (first.request_id, first.final) == ("7", False)
    assert first.outputs["status"].tolist() == [b"READY"]
    assert (second.request_id, second.final, dict(second.outputs)) == ("7", True, {})


@pytest.mark.parametrize(
    ("message", "request_id"),
    [("[request id: 7] unexpected shape", "7"), ("must specify the START flag", "")],
)
async def test_an_error_keeps_the_request_id_where_its_text_has_one(
    message: str, request_id: str
) -> None:
    error = service_pb2.ModelStreamInferResponse(error_message=message)
    received = await TritonStream(FakeServer(error), "here").receive()
    assert (received.request_id, received.error, received.final) == (request_id, message, True)


async def test_no_server_and_a_lost_one_are_distinguished() -> None:
    gone = rpc_error(grpc.StatusCode.UNAVAILABLE)
    with pytest.raises(ServerUnavailable, match=r"here.*refused"):
        await TritonStream(FakeServer(gone), "here").receive()
    stream = TritonStream(FakeServer(response("7", final=True), gone), "here")
    await stream.receive()
    with pytest.raises(Disconnected, match=r"here.*refused"):
        await stream.receive()
    with pytest.raises(Disconnected, match="ended the stream"):
        await stream.receive()


async def test_finishing_ends_the_requests_and_cancelling_the_responses() -> None:
    server = FakeServer()
    stream = TritonStream(server, "here")
    stream.finish()
    assert server.requests is not None
    assert [request async for request in server.requests] == []
    assert not server.responses.cancelled
    stream.cancel()
    assert server.responses.cancelled


async def test_the_server_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    class Server:
        serving = True

        async def get_server_metadata(self, as_json: bool) -> dict[str, Any]:
            return {"name": "triton", "version": "2.51.0"}

        async def get_inference_statistics(self, as_json: bool) -> dict[str, Any]:
            return {"model_stats": [{"name": "orchestrator", "version": "1"}]}

        async def is_model_ready(self, name: str) -> bool:
            return self.serving

        async def get_model_metadata(self, name: str, as_json: bool) -> dict[str, Any]:
            return {"inputs": [{"name": "poses", "datatype": "FP32", "shape": ["-1", "4", "4"]}]}

        async def get_model_config(self, name: str, as_json: bool) -> dict[str, Any]:
            return {"config": {"parameters": {"stages": {"string_value": "prompt,decode"}}}}

        async def is_server_live(self) -> bool:
            return True

        async def is_server_ready(self) -> bool:
            return False

    transport = TritonTransport("here")
    monkeypatch.setattr(transport, "_connected", Server())
    info = await transport.describe()
    assert (info.name, info.version, info.live, info.ready) == ("triton", "2.51.0", True, False)
    assert info.models == (Model("orchestrator", "1", ready=True),)
    assert info.inputs == (Tensor("poses", "FP32", (-1, 4, 4)),)
    assert info.stages == ("prompt", "decode")
    Server.serving = False
    info = await transport.describe()
    assert (info.inputs, info.stages) == ((), ())


async def test_a_port_without_a_listener_is_unavailable() -> None:
    free = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = free.sockets[0].getsockname()[1]
    free.close()
    await free.wait_closed()
    transport = TritonTransport(f"127.0.0.1:{port}")
    try:
        with pytest.raises(ServerUnavailable, match=str(port)):
            await transport.describe()
        stream = transport.open_stream()
        with pytest.raises(ServerUnavailable, match=str(port)):
            await stream.receive()
        stream.cancel()
    finally:
        await transport.close()
