"""The real transport, and the only module that touches tritonclient, which has no types."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc  # type: ignore[import-untyped]
from tritonclient.grpc import InferInput, InferResult
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from lingbot_client import protocol
from lingbot_client.errors import ConnectionFailed, Disconnected, ServerUnavailable
from lingbot_client.transport import Model, Request, Response, ServerInfo, Stream, Tensor

StrPath = str | os.PathLike[str]


@dataclass(frozen=True)
class TLS:
    """Files in PEM form; without root certificates the system's own are used."""

    root_certificates: StrPath | None = None
    private_key: StrPath | None = None
    certificate_chain: StrPath | None = None


class TritonStream:
    """One bidirectional gRPC stream."""

    def __init__(self, client: Any, url: str) -> None:
        self._url = url
        self._requests: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._responses = client.stream_infer(self._outgoing())
        self._answered = False

    def send(self, request: Request) -> None:
        self._requests.put_nowait(_infer_arguments(request))

    async def receive(self) -> Response:
        try:
            result, error = await anext(self._responses)
        except grpc.aio.AioRpcError as failure:
            raise self._failed(failure.code(), failure.details()) from failure
        except (StopAsyncIteration, asyncio.InvalidStateError):
            raise Disconnected(f"the server at {self._url} ended the stream") from None
        self._answered = True
        if error is not None:
            return _error(error.message())
        return _response(result)

    def finish(self) -> None:
        self._requests.put_nowait(None)

    def cancel(self) -> None:
        self._responses.cancel()

    async def _outgoing(self) -> AsyncIterator[dict[str, Any]]:
        while (request := await self._requests.get()) is not None:
            yield request

    def _failed(self, code: grpc.StatusCode, details: str | None) -> ConnectionFailed:
        if code is grpc.StatusCode.UNAVAILABLE and not self._answered:
            return ServerUnavailable(f"no server answers at {self._url}: {details}")
        return Disconnected(f"the connection to {self._url} was lost: {details}")


class TritonTransport:
    """A gRPC channel to one Triton server, made when it is first used."""

    def __init__(self, url: str, tls: TLS | None = None) -> None:
        self._url = url
        self._tls = tls
        self._connected: Any = None

    @property
    def _client(self) -> Any:
        if self._connected is None:  # not sooner: a channel belongs to the loop that runs now
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
        return TritonStream(self._client, self._url)

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
            )
        except InferenceServerException as error:
            text = f"the server at {self._url} does not answer: {error.message()}"
            raise ServerUnavailable(text) from error

    async def close(self) -> None:
        if self._connected is not None:
            await self._connected.close()

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


def _infer_arguments(request: Request) -> dict[str, Any]:
    inputs = []
    for name, array in request.inputs.items():
        tensor = InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return {
        "model_name": protocol.MODEL,
        "inputs": inputs,
        "request_id": request.id,
        "sequence_id": request.sequence_id,
        "sequence_start": request.start,
        "sequence_end": request.end,
        "parameters": {"triton_enable_empty_final_response": True},
    }


def _error(message: str) -> Response:
    named = re.match(r"\[request id: (.+?)\]", message)
    return Response(named[1] if named else "", final=True, error=message)


def _response(result: InferResult) -> Response:
    message = result.get_response()
    outputs = {output.name: result.as_numpy(output.name) for output in message.outputs}
    final = message.parameters["triton_final_response"].bool_param
    return Response(message.id, outputs, final)
