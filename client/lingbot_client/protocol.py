"""The public protocol as a client sees it: tensor names, and values to tensors and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lingbot_client.errors import ProtocolError, WorldError, from_status

Array = NDArray[Any]
Tensors = Mapping[str, Array]

MODEL = "orchestrator"

IMAGE = "image"
PROMPT = "prompt"
OPTIONS = "options"
CHUNK_INDEX = "chunk_index"
KEYS = "keys"
POSES = "poses"
TOKEN = "token"

STATUS = "status"
MESSAGE = "message"
FRAME_INDEX = "frame_index"
FRAMES = "frames"
INFO = "info"

READY, FRAMES_PART, CLOSED = "READY", "FRAMES", "CLOSED"

FRAMES_PER_LATENT = 4
"""Frames that a latent frame becomes; the very first one of a session becomes a single frame."""


@dataclass(frozen=True)
class Response:
    """One response that carries outputs; an output left out counts as empty."""

    status: str
    """READY, FRAMES, CLOSED or an error code."""
    message: str
    chunk_index: int
    """Chunk that the response is for, or -1."""
    frame_index: int
    """Session-wide index of the first frame here, or -1."""
    frames: NDArray[np.uint8]
    """RGB [n, H, W, 3]; n is 0 without frames."""
    info: dict[str, Any]
    received_at: float
    """When it arrived, on this machine's monotonic clock, in seconds."""

    @property
    def error(self) -> WorldError | None:
        """The exception this response stands for, None when all is well."""
        if self.status in (READY, FRAMES_PART, CLOSED):
            return None
        return from_status(self.status, self.message)

    def raise_for_status(self) -> Response:
        """Return the response itself, or raise the exception it stands for."""
        if self.error is not None:
            raise self.error
        return self

    @classmethod
    def from_tensors(cls, outputs: Tensors, received_at: float) -> Response:
        """Read a response's outputs; raises ProtocolError where they cannot be read."""
        try:
            return cls(
                status=_text(outputs[STATUS]),
                message=_text(outputs[MESSAGE]) if MESSAGE in outputs else "",
                chunk_index=int(outputs[CHUNK_INDEX][0]) if CHUNK_INDEX in outputs else -1,
                frame_index=int(outputs[FRAME_INDEX][0]) if FRAME_INDEX in outputs else -1,
                frames=outputs.get(FRAMES, np.empty((0, 0, 0, 3), np.uint8)),
                info=json.loads(_text(outputs[INFO]) or "{}") if INFO in outputs else {},
                received_at=received_at,
            )
        except (KeyError, IndexError, ValueError) as error:
            raise ProtocolError(f"the server's answer cannot be read: {error!r}") from error


def _text(tensor: Array) -> str:
    return bytes(tensor[0]).decode("utf-8")


def tensor(value: Any) -> Array:
    """A plain value as the tensor the protocol wants for it; an array stays as it is.

    Text and bytes become BYTES [1], an int INT32 [1], a dict its JSON as BYTES [1], a list or
    tuple of texts BYTES [n].
    """
    match value:
        case np.ndarray():
            return value
        case dict():
            return tensor(json.dumps(value))
        case str():
            return tensor(value.encode())
        case bytes():
            return np.array([value], dtype=object)
        case int():
            return np.array([value], dtype=np.int32)
        case list() | tuple():
            return np.array([item.encode() for item in value], dtype=object)
    raise TypeError(f"no tensor for a {type(value).__name__}")


def chunk_latent_frames(ready: Mapping[str, Any]) -> int:
    """Latent frames of a chunk, and so poses of a control, from READY; raises ProtocolError."""
    try:
        return int(ready["chunk_latent_frames"])
    except (KeyError, TypeError, ValueError):
        raise ProtocolError("the server's READY has no valid chunk_latent_frames") from None


def chunk_frames(chunk_index: int, latent_frames: int) -> int:
    """Frames of a chunk of so many latent frames."""
    frames = FRAMES_PER_LATENT * latent_frames
    return frames if chunk_index else frames - FRAMES_PER_LATENT + 1


def control(keys: str | Sequence[str], poses: ArrayLike | None) -> dict[str, Any]:
    """The values of one control: keys held, none of them to stand still, or camera poses.

    Raises ValueError for both at once, and for poses that are not matrices [n, 4, 4].
    """
    if poses is None:
        return {KEYS: list(keys) or [""]}
    if keys:
        raise ValueError("a control is either keys or poses, not both")
    matrices = np.asarray(poses, dtype=np.float32)
    if matrices.ndim != 3 or matrices.shape[1:] != (4, 4):
        raise ValueError(f"poses must be [latent frames, 4, 4], not {list(matrices.shape)}")
    return {POSES: matrices}


def check_pose_count(control: Mapping[str, Any], ready: Mapping[str, Any]) -> None:
    """Raises ValueError unless a control's poses are one for each latent frame of a chunk."""
    if POSES in control:
        count, needed = len(control[POSES]), chunk_latent_frames(ready)
        if count != needed:
            raise ValueError(f"the control has {count} poses; a chunk of this model takes {needed}")
