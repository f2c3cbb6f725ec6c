"""A bare Triton echo, for comparison: a decoupled parent, one BLS call to a plain child.

It has the orchestrator's name, tensors and scheduling, so that the same client drives it the same
way, and sends a chunk's bytes in one response. There are no sessions and no stages behind it.
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
TEXTS = {"message": b"", "info": b'{"part": 0, "parts": 1}'}


class TritonPythonModel:
    async def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            try:
                outputs = await respond(request)
                sender.send(pb_utils.InferenceResponse(outputs), flags=FINAL)
            except Exception:
                sender.send(flags=FINAL)
                raise


async def respond(request):
    if request.flags() & (START | END):
        empty = pb_utils.Tensor("frames", np.zeros((0, 1, 1, 3), np.uint8))
        return tensors("READY" if request.flags() & START else "CLOSED", -1, empty)
    child = pb_utils.InferenceRequest(
        model_name="echo_source", requested_output_names=["frames"], inputs=[]
    )
    response = await child.async_exec()
    if response.has_error():
        raise RuntimeError(response.error().message())
    index = pb_utils.get_input_tensor_by_name(request, "chunk_index").as_numpy()[0]
    return tensors("FRAMES", index, response.output_tensors()[0])


def tensors(status, index, frames):
    texts = {"status": status.encode(), **TEXTS}
    numbers = {"chunk_index": index, "frame_index": 0}
    return [
        *(pb_utils.Tensor(name, np.array([text], object)) for name, text in texts.items()),
        *(pb_utils.Tensor(name, np.array([n], np.int32)) for name, n in numbers.items()),
        frames,
    ]
"""

CHILD_CODE = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [respond() for _ in requests]


def respond():
    frames = np.empty({shape}, np.uint8)
    frames.fill(128)
    return pb_utils.InferenceResponse([pb_utils.Tensor("frames", frames)])
"""


def write_echo_repository(folder: Path, frames: int, height: int, width: int) -> Path:
    """Write a model repository whose chunks are `frames` frames; returns `folder`."""
    child_code = CHILD_CODE.format(shape=(frames, height, width, 3))
    for model, code in ((ORCHESTRATOR, PARENT_CODE), (CHILD, child_code)):
        (folder / model.name / "1").mkdir(parents=True)
        (folder / model.name / "config.pbtxt").write_text(render(model))
        (folder / model.name / "1" / "model.py").write_text(code.lstrip())
    return folder
