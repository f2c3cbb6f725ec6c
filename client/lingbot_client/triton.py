"""The real transport, and the only module that touches tritonclient, which has no types."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
from tritonclient.grpc import InferResult, service_pb2, service_pb2_grpc
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException, np_to_triton_dtype, serialize_byte_tensor

from lingbot_client import protocol
from lingbot_client.errors import ConnectionFailed, Disconnected, ServerUnavailable
from lingbot_client.transport import Model, RawResponse, Request, ServerInfo, Stream, Tensor

STAGES = "stages"
"""Parameter of the orchestrator's configuration: names with commas between them."""

StrPath = str | os.PathLike[str]
Message = Any
"""A `ModelInferRequest`; protobuf's classes have no types."""

CHANNEL_OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
"""Frames are larger than the 4 MB that gRPC takes by default."""


@dataclass(frozen=True)
class TLS:
    """Files in PEM form; without root certificates the system's own are used."""

    root_certificates: StrPath | None = None
    private_key: StrPath | None = None
    certificate_chain: StrPath | None = None


class TritonStream:
    """One bidirectional gRPC stream.

    tritonclient's own `stream_infer` cannot ask for final responses that are empty: newer releases
    refuse the parameter, and have nothing in its place.
    """

    def __init__(self, stream_infer: Callable[[AsyncIterator[Message]], Any], url: str) -> None:
        self._url = url
        self._requests: asyncio.Queue[Message | None] = asyncio.Queue()
        self._responses = stream_infer(self._outgoing())
        self._answered = False

    def send(self, request: Request) -> None:
        self._requests.put_nowait(_message(request))

    async def receive(self) -> RawResponse:
        try:
            response = await anext(aiter(self._responses))
        except grpc.aio.AioRpcError as failure:
            raise self._failed(failure.code(), failure.details()) from failure
        except (StopAsyncIteration, asyncio.InvalidStateError):
            raise Disconnected(f"the server at {self._url} ended the stream") from None
        self._answered = True
        if response.error_message:
            return _error(response.error_message)
        return _response(InferResult(response.infer_response))

    def finish(self) -> None:
        self._requests.put_nowait(None)

    def cancel(self) -> None:
        self._responses.cancel()

    async def _outgoing(self) -> AsyncIterator[Message]:
        while (request := await self._requests.get()) is not None:
            yield request

    def _failed(self, code: grpc.StatusCode, details: str | None) -> ConnectionFailed:
        if code is grpc.StatusCode.UNAVAILABLE and not self._answered:
            return ServerUnavailable(f"no server answers at {self._url}: {details}")
        return Disconnected(f"the connection to {self._url} was lost: {details}")


class TritonTransport:
    """gRPC channels to one Triton server, made when they are first used: a channel belongs to the
    loop that runs then."""

    def __init__(self, url: str, tls: TLS | None = None) -> None:
        self._url = url
        self._tls = tls
        self._channel: Any = None
        self._connected: Any = None

    @property
    def _client(self) -> Any:
        if self._connected is None:
            tls = self._tls or TLS()
            self._connected = InferenceServerClient(
                self._url,
                ssl=self._tls is not None,
                root_certificates=tls.root_certificates,
                private_key=tls.private_key,
                certificate_chain=tls.certificate_chain,
            )
        return self._connected

    def open_stream(self) -> Stream:
        if self._channel is None:
            self._channel = _open_channel(self._url, self._tls)
        stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        return TritonStream(stub.ModelStreamInfer, self._url)

    async def describe(self) -> ServerInfo:
        client = self._client
        try:
            metadata = await client.get_server_metadata(as_json=True)
            models = await self._models()
            serving = any(m.name == protocol.MODEL and m.ready for m in models)
            return ServerInfo(
                live=await client.is_server_live(),
                ready=await client.is_server_ready(),
                name=metadata["name"],
                version=metadata["version"],
                models=models,
                inputs=await self._inputs() if serving else (),
                stages=await self._stages() if serving else (),
            )
        except InferenceServerException as error:
            text = f"the server at {self._url} does not answer: {error.message()}"
            raise ServerUnavailable(text) from error

    async def close(self) -> None:
        for connection in (self._channel, self._connected):
            if connection is not None:
                await connection.close()

    async def _models(self) -> tuple[Model, ...]:
        """Loaded models. The repository index would tell more, but servers close it to clients."""
        statistics = await self._client.get_inference_statistics(as_json=True)
        models = []
        for entry in statistics.get("model_stats", []):
            name, version = entry["name"], entry.get("version", "")
            models.append(Model(name, version, await self._client.is_model_ready(name)))
        return tuple(models)

    async def _inputs(self) -> tuple[Tensor, ...]:
        metadata = await self._client.get_model_metadata(protocol.MODEL, as_json=True)
        return tuple(
            Tensor(entry["name"], entry["datatype"], tuple(int(n) for n in entry["shape"]))
            for entry in metadata["inputs"]
        )

    async def _stages(self) -> tuple[str, ...]:
        """The models that the orchestrator calls; its configuration lists them."""
        response = await self._client.get_model_config(protocol.MODEL, as_json=True)
        parameters = response["config"].get("parameters", {})
        return tuple(filter(None, parameters.get(STAGES, {}).get("string_value", "").split(",")))


def _open_channel(url: str, tls: TLS | None) -> Any:
    if tls is None:
        return grpc.aio.insecure_channel(url, options=CHANNEL_OPTIONS)
    paths = (tls.root_certificates, tls.private_key, tls.certificate_chain)
    files = (None if path is None else Path(path).read_bytes() for path in paths)
    credentials = grpc.ssl_channel_credentials(*files)
    return grpc.aio.secure_channel(url, credentials, options=CHANNEL_OPTIONS)


def _message(request: Request) -> Message:
    message = service_pb2.ModelInferRequest(model_name=protocol.MODEL, id=request.id)
    for name, array in request.inputs.items():
        kind = np_to_triton_dtype(array.dtype)
        message.inputs.add(name=name, datatype=kind, shape=array.shape)
        if kind == "BYTES":
            data = serialize_byte_tensor(array).item() if array.size else b""
        else:
            data = array.tobytes()
        message.raw_input_contents.append(data)
    parameters = message.parameters
    if isinstance(request.sequence_id, str):
        parameters["sequence_id"].string_param = request.sequence_id
    else:
        parameters["sequence_id"].int64_param = request.sequence_id
    parameters["sequence_start"].bool_param = request.start
    parameters["sequence_end"].bool_param = request.end
    parameters["triton_enable_empty_final_response"].bool_param = True
    return message


def _error(message: str) -> RawResponse:
    named = re.match(r"\[request id: (.+?)\]", message)
    return RawResponse(named[1] if named else "", final=True, error=message)


def _response(result: InferResult) -> RawResponse:
    message = result.get_response()
    outputs = {output.name: result.as_numpy(output.name) for output in message.outputs}
    final = message.parameters["triton_final_response"].bool_param
    return RawResponse(message.id, outputs, final)
