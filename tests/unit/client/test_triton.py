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
from tritonclient.grpc import InferResult, service_pb2
from tritonclient.utils import InferenceServerException, serialize_byte_tensor


class FakeResponses:
    """What `stream_infer` returns: pairs of result and error, or an exception at the end."""

    def __init__(self, *items: Any) -> None:
        self._items = list(items)
        self.cancelled = False

    async def __anext__(self) -> Any:
        item = self._items.pop(0) if self._items else StopAsyncIteration()
        if isinstance(item, BaseException):
            raise item
        return item

    def cancel(self) -> None:
        self.cancelled = True


class FakeInferenceClient:
    def __init__(self, *items: Any) -> None:
        self.responses = FakeResponses(*items)
        self.requests: AsyncIterator[dict[str, Any]] | None = None

    def stream_infer(self, requests: AsyncIterator[dict[str, Any]]) -> FakeResponses:
        self.requests = requests
        return self.responses


def rpc_error(code: grpc.StatusCode) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), "refused")


def infer_result(request_id: str, *, final: bool, **texts: bytes) -> InferResult:
    message = service_pb2.ModelInferResponse(id=request_id)
    message.parameters["triton_final_response"].bool_param = final
    for name, text in texts.items():
        message.outputs.add(name=name, datatype="BYTES", shape=[1])
        data = serialize_byte_tensor(np.array([text], dtype=object))
        message.raw_output_contents.append(data.item())
    return InferResult(message)


async def test_a_request_carries_id_sequence_flags_and_tensors() -> None:
    client = FakeInferenceClient()
    stream = TritonStream(client, "here")
    inputs = {"chunk_index": np.array([3], np.int32), "keys": np.array([b"w", b"l"], object)}
    stream.send(Request("7", "mine", False, True, inputs))
    assert client.requests is not None
    sent = await anext(client.requests)
    assert sent["model_name"] == "orchestrator"
    assert (sent["request_id"], sent["sequence_id"]) == ("7", "mine")
    assert (sent["sequence_start"], sent["sequence_end"]) == (False, True)
    assert sent["parameters"] == {"triton_enable_empty_final_response": True}
    tensors = [(t.name(), t.datatype(), t.shape()) for t in sent["inputs"]]
    assert tensors == [("chunk_index", "INT32", [1]), ("keys", "BYTES", [2])]


async def test_responses_are_read_with_their_outputs_and_final_flag() -> None:
    part = infer_result("7", final=False, status=b"READY")
    stream = TritonStream(
        FakeInferenceClient((part, None), (infer_result("7", final=True), None)), "here"
    )
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
    error = InferenceServerException(message)
    response = await TritonStream(FakeInferenceClient((None, error)), "here").receive()
    assert (response.request_id, response.error, response.final) == (request_id, message, True)


async def test_no_server_is_told_from_a_lost_one() -> None:
    gone = rpc_error(grpc.StatusCode.UNAVAILABLE)
    with pytest.raises(ServerUnavailable, match=r"here.*refused"):
        await TritonStream(FakeInferenceClient(gone), "here").receive()
    stream = TritonStream(FakeInferenceClient((infer_result("7", final=True), None), gone), "here")
    await stream.receive()
    with pytest.raises(Disconnected, match=r"here.*refused"):
        await stream.receive()
    with pytest.raises(Disconnected, match="ended the stream"):
        await stream.receive()


async def test_finishing_ends_the_requests_and_cancelling_the_responses() -> None:
    client = FakeInferenceClient()
    stream = TritonStream(client, "here")
    stream.finish()
    assert client.requests is not None
    assert [request async for request in client.requests] == []
    assert not client.responses.cancelled
    stream.cancel()
    assert client.responses.cancelled


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
    Server.serving = False
    assert (await transport.describe()).inputs == ()


async def test_a_port_where_nobody_listens_is_unavailable() -> None:
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
