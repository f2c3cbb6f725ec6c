"""A bare Triton echo, for comparison: a decoupled parent, one BLS call to a plain child.

It has the orchestrator's name, tensors and scheduling, so that the same client drives it the same
way, and sends a chunk's bytes in one response. There are no sessions and no stages behind it.
When its server stops, it is asked for sequences to end, and has none.
"""

from __future__ import annotations

from pathlib import Path

from lingbot_triton.protocol import FRAMES, ORCHESTRATOR, ModelSpec
from lingbot_triton.triton.render import render

CHILD = ModelSpec("echo_source", "makes a chunk's bytes", (), (FRAMES,))

PARENT_CODE = """
import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
START, END = 1, 2


class TritonPythonModel:
    async def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            try:
                outputs = await answer(request)
                sender.send(pb_utils.InferenceResponse(outputs), flags=FINAL)
            except Exception:
                sender.send(flags=FINAL)
                raise


async def answer(request):
    if request.flags() & START:
        return tensors("READY")
    if request.flags() & END:
        return tensors("CLOSED")
    child = pb_utils.InferenceRequest(
        model_name="echo_source", requested_output_names=["frames"], inputs=[]
    )
    response = await child.async_exec()
    if response.has_error():
        raise RuntimeError(response.error().message())
    index = pb_utils.get_input_tensor_by_name(request, "chunk_index").as_numpy()
    return tensors("FRAMES", index, response.output_tensors()[0])


def tensors(status, index=np.array([-1], np.int32), frames=None):
    if frames is None:
        frames = pb_utils.Tensor("frames", np.zeros((0, 1, 1, 3), np.uint8))
    info = b'{"part": 0, "parts": 1, "sequences": []}'
    return [
        pb_utils.Tensor("status", np.array([status.encode()], dtype=object)),
        pb_utils.Tensor("message", np.array([b""], dtype=object)),
        pb_utils.Tensor("chunk_index", index),
        pb_utils.Tensor("frame_index", np.array([0], np.int32)),
        pb_utils.Tensor("info", np.array([info], dtype=object)),
        frames,
    ]
"""

CHILD_CODE = """
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.shape = json.loads(parameters["frames_shape"]["string_value"])

    def execute(self, requests):
        return [self.answer() for _ in requests]

    def answer(self):
        frames = np.empty(self.shape, np.uint8)
        frames.fill(128)
        return pb_utils.InferenceResponse([pb_utils.Tensor("frames", frames)])
"""


def write_echo_repository(folder: Path, frames: int, height: int, width: int) -> Path:
    """Write a model repository whose chunks are `frames` frames; returns `folder`."""
    shape = [frames, height, width, 3]
    parameter = f'parameters {{ key: "frames_shape" value: {{ string_value: "{shape}" }} }}\n'
    _write(folder / ORCHESTRATOR.name, render(ORCHESTRATOR), PARENT_CODE)
    _write(folder / CHILD.name, render(CHILD) + parameter, CHILD_CODE)
    return folder


def _write(folder: Path, config: str, code: str) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config)
    (folder / "1" / "model.py").write_text(code.lstrip())
