"""Plays a folder's session through a running server.

The orchestrator's clients see frames only. With the server's secret the workers can be reached
too, and prompts, conditions, flows and latents are compared as Triton passes them on.
"""

from __future__ import annotations

import io
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient
from lingbot_client import SyncWorldClient
from numpy.typing import NDArray
from PIL import Image
from tritonclient.utils import np_to_triton_dtype

from lingbot_tools.regression.compare import compare_sessions, compare_text
from lingbot_tools.regression.expectations import ExpectationError, Expectations, Variant
from lingbot_tools.regression.play import Stages
from lingbot_tools.regression.report import Report
from lingbot_triton import protocol
from lingbot_triton.stage import CONTEXT, STAGES
from lingbot_triton.stages import Arrays, Parameters
from lingbot_triton.world.geometry import MIN_SIDE, Geometry


@dataclass
class RemoteStage:
    """A worker model of a server, called as the stages are; a session's state is its sequence id.

    Calls raise InferenceServerException with the model's words.
    """

    client: Any
    model: str
    secret: str

    def _call(self, arrays: Arrays, parameters: Parameters, **sequence: Any) -> Arrays:
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
        array = np.array([prompt.encode()], dtype=object)
        return self._call({protocol.PROMPT.name: array}, {})[CONTEXT.name]

    def open(self, arrays: Arrays, parameters: Parameters) -> str:
        state = uuid.uuid4().hex
        self._call(arrays, {**parameters, "op": "open"}, sequence_id=state, sequence_start=True)
        return state

    def step(self, state: str, arrays: Arrays, parameters: Parameters) -> Arrays:
        return self._call(arrays, {**parameters, "op": "step"}, sequence_id=state)

    def commit(self, state: str) -> None:
        self._call({}, {"op": "commit"}, sequence_id=state)

    def close(self, state: str) -> None:
        self._call({}, {"op": "close"}, sequence_id=state, sequence_end=True)


def play_on_server(url: str, expected: Path, secret: str | None = None) -> Report:
    """Play the session in `expected` on the server at `url` and compare what can be seen there.

    Raises ExpectationError for the folder, and the client's exceptions for the server.
    """
    expectations = Expectations.load(expected)
    report = Report(f"server {url}")
    variants, report.not_compared = expectations.variants()
    report.not_compared.append("token ids, schedule and controls: they never leave the stages")
    with SyncWorldClient(url) as world:
        for variant in variants:
            frames = (expectations.tensors(variant.file) or {}).get("frames_u8")
            if frames is None:
                report.not_compared.append(f"{variant.file}.frames")
                continue
            mine, again = (_frames(world, expectations, variant) for _ in range(2))
            report.compare(f"{variant.file}.frames", "frames", mine, frames)
            report.compare("repeat", "repeat", again, mine)
    if secret is None:
        report.not_compared.append("what workers give: LINGBOT_SECRET is not set")
        return report
    with grpcclient.InferenceServerClient(url) as client:
        stages = Stages(*(RemoteStage(client, stage.name, secret) for stage in STAGES))
        compare_text(report, expectations, stages.prompt)
        compare_sessions(report, expectations, stages, variants)
    return report


def area_for(geometry: Geometry, picture: bytes) -> int:
    """The least `max_area` at which this picture's frames have just this size.

    Raises ExpectationError where none does: a server's frames have their picture's aspect ratio.
    """
    with Image.open(io.BytesIO(picture)) as image:
        width, height = image.size
    beyond = (geometry.height + MIN_SIDE) * (geometry.width + MIN_SIDE)
    for area in range(geometry.height * geometry.width, beyond):
        if Geometry.fit(height, width, area) == geometry:
            return area
    raise ExpectationError(
        f"no max_area makes frames of {geometry.width}x{geometry.height} of a picture of "
        f"{width}x{height}: on a server they have its aspect ratio"
    )


def _frames(client: SyncWorldClient, expectations: Expectations, variant: Variant) -> NDArray[Any]:
    """The session's frames through the orchestrator, [n, H, W, 3]."""
    picture = expectations.picture_file.read_bytes()
    options = variant.options.differing()
    options["max_area"] = area_for(expectations.geometry, picture)
    frames = []
    with client.open_session(picture, variant.prompt, **options) as session:
        for keys in expectations.keys:
            session.send(keys)
            frames.append(session.next_chunk().frames)
    return np.concatenate(frames)
