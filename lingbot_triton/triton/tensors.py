"""numpy arrays to and from Triton tensors, and errors to and from a Triton error's one string."""

from __future__ import annotations

import logging
import re
import sys
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from lingbot_triton.errors import BY_CODE, ShuttingDown, StageDead, StageFailed, WorldError
from lingbot_triton.stages import Arrays


def to_tensor(name: str, value: Any) -> Any:
    """A Triton tensor called `name`; a tensor that another model answered with goes on unread."""
    if isinstance(value, pb_utils.Tensor):
        return value if value.name() == name else pb_utils.Tensor(name, value.as_numpy())
    return pb_utils.Tensor(name, np.ascontiguousarray(value))


def to_tensors(arrays: dict[str, Any]) -> list[Any]:
    return [to_tensor(name, value) for name, value in arrays.items()]


def to_arrays(tensors: list[Any]) -> Arrays:
    """Views into Triton's shared memory: copy what is kept."""
    return {tensor.name(): tensor.as_numpy() for tensor in tensors}


def to_triton_error(error: WorldError) -> Any:
    return pb_utils.TritonError(f"{error.code}: {error}")


def from_triton_error(model: str, message: str) -> WorldError:
    """The error another model answered with; whatever is not one of ours is a stage failure."""
    if unhealthy := re.search(r"Stub process '(\S+)' is not healthy", message):
        return StageDead(model, f"the {model} worker has died", unhealthy[1])
    if "Server not ready" in message:
        return ShuttingDown("the server is shutting down")
    code, separator, sentence = message.partition(": ")
    kind = BY_CODE.get(code)
    if separator and kind is not None:
        return kind(sentence)
    return StageFailed(f"{model} failed: {message}")


class _TritonHandler(logging.Handler):
    """Log records as lines of Triton's own log."""

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        if record.levelno >= logging.ERROR:
            pb_utils.Logger.log_error(line)
        elif record.levelno >= logging.WARNING:
            pb_utils.Logger.log_warn(line)
        elif record.levelno >= logging.INFO:
            pb_utils.Logger.log_info(line)
        else:
            pb_utils.Logger.log_verbose(line)


def log_to_triton(model: str) -> None:
    """Send the package's log records to Triton's log, each with the model's name."""
    handler = _TritonHandler()
    handler.setFormatter(logging.Formatter(f"{model}: %(message)s"))
    logger = logging.getLogger("lingbot_triton")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
    sys.excepthook = lambda kind, error, trace: logger.error("", exc_info=(kind, error, trace))
