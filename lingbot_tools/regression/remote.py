"""The stages of a running server, for a caller that knows its secret: the same calls, over gRPC."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient
from numpy.typing import NDArray
from tritonclient.utils import np_to_triton_dtype

from lingbot_triton import protocol
from lingbot_triton.stage import (
    CONDITION_STAGE,
    CONTEXT,
    DECODE_STAGE,
    DENOISE_STAGE,
    PROMPT_STAGE,
)
from lingbot_triton.stages import Arrays, Parameters


@dataclass
class RemoteStage:
    """One worker model of a server; a session's state is its sequence id."""

    client: Any
    model: str
    secret: str

    def _call(self, arrays: Arrays, parameters: Parameters, **sequence: Any) -> Arrays:
        """One request and its outputs; raises InferenceServerException with the model's words."""
        inputs = []
        for name, array in arrays.items():
            tensor = grpcclient.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
            tensor.set_data_from_numpy(np.ascontiguousarray(array))
            inputs.append(tensor)
        parameters = {**parameters, protocol.SECRET: self.secret}
        result = self.client.infer(self.model, inputs, parameters=parameters, **sequence)
        names = [output.name for output in result.get_response().outputs]
        return {name: result.as_numpy(name) for name in names}

    def encode(self, prompt: str) -> NDArray[Any]:
        """Of `prompt` only."""
        array = np.array([prompt.encode()], dtype=object)
        return self._call({protocol.PROMPT.name: array}, {})[CONTEXT.name]

    def open(self, arrays: Arrays, parameters: Parameters) -> str:
        state = uuid.uuid4().hex
        opening = {**parameters, "op": "open"}
        self._call(arrays, opening, sequence_id=state, sequence_start=True)
        return state

    def step(self, state: str, arrays: Arrays, parameters: Parameters) -> Arrays:
        return self._call(arrays, {**parameters, "op": "step"}, sequence_id=state)

    def commit(self, state: str) -> None:
        self._call({}, {"op": "commit"}, sequence_id=state)

    def close(self, state: str) -> None:
        self._call({}, {"op": "close"}, sequence_id=state, sequence_end=True)


@contextmanager
def remote_stages(url: str, secret: str) -> Iterator[list[RemoteStage]]:
    """`prompt`, `condition`, `denoise` and `decode` of a server."""
    models = (PROMPT_STAGE, CONDITION_STAGE, DENOISE_STAGE, DECODE_STAGE)
    with grpcclient.InferenceServerClient(url) as client:
        yield [RemoteStage(client, model.name, secret) for model in models]
