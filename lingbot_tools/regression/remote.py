"""The stages of a running server, for whoever knows its secret: the same calls, over gRPC."""

from __future__ import annotations

import uuid
from types import TracebackType
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient
from numpy.typing import NDArray
from tritonclient.utils import np_to_triton_dtype

from lingbot_triton import protocol, stage
from lingbot_triton.protocol import ModelSpec
from lingbot_triton.stage import CONDITION_STAGE, DECODE_STAGE, DENOISE_STAGE, PROMPT_STAGE
from lingbot_triton.stages import Arrays, Parameters


class RemoteModel:
    """One worker model of a server."""

    def __init__(self, client: Any, spec: ModelSpec, secret: str) -> None:
        self._client = client
        self._spec = spec
        self._secret = secret

    def call(self, arrays: Arrays, parameters: Parameters, **sequence: Any) -> Arrays:
        """One request and its outputs; raises InferenceServerException with the model's words."""
        inputs = []
        for name, array in arrays.items():
            tensor = grpcclient.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
            tensor.set_data_from_numpy(np.ascontiguousarray(array))
            inputs.append(tensor)
        given = dict(parameters) | sequence.pop("more", {}) | {protocol.SECRET: self._secret}
        result = self._client.infer(self._spec.name, inputs, parameters=given, **sequence)
        names = [output.name for output in result.get_response().outputs]
        return {name: result.as_numpy(name) for name in names}


class RemotePrompt(RemoteModel):
    """`prompt` of a server."""

    def encode(self, prompt: str) -> NDArray[Any]:
        array = np.array([prompt.encode()], dtype=object)
        return self.call({protocol.PROMPT.name: array}, {})[stage.CONTEXT.name]


class RemoteStage(RemoteModel):
    """`condition`, `denoise` or `decode` of a server; a session's state is its sequence id."""

    def open(self, arrays: Arrays, parameters: Parameters) -> str:
        state = uuid.uuid4().hex
        self.call(arrays, parameters, sequence_id=state, sequence_start=True, more={"op": "open"})
        return state

    def step(self, state: str, arrays: Arrays, parameters: Parameters) -> Arrays:
        return self.call(arrays, parameters, sequence_id=state, more={"op": "step"})

    def commit(self, state: str) -> None:
        self.call({}, {}, sequence_id=state, more={"op": "commit"})

    def close(self, state: str) -> None:
        self.call({}, {}, sequence_id=state, sequence_end=True, more={"op": "close"})


class RemoteStages:
    """All four of a server; a context manager. Its fields are those of `play.StageSet`."""

    def __init__(self, url: str, secret: str) -> None:
        self._client = grpcclient.InferenceServerClient(url)
        self.prompt = RemotePrompt(self._client, PROMPT_STAGE, secret)
        self.condition = RemoteStage(self._client, CONDITION_STAGE, secret)
        self.denoise = RemoteStage(self._client, DENOISE_STAGE, secret)
        self.decode = RemoteStage(self._client, DECODE_STAGE, secret)

    def last_keys(self, state: str) -> None:
        """A server shows nobody its caches."""

    def __enter__(self) -> RemoteStages:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._client.close()
