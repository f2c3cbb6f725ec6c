"""Arrays of a Triton request to a `Request`, and a `Response` to the arrays of Triton's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from lingbot_triton import protocol
from lingbot_triton.errors import BadRequest, WorldError
from lingbot_triton.options import SessionOptions
from lingbot_triton.orchestrator.events import Control
from lingbot_triton.orchestrator.requests import Request, Response, SessionId, Start
from lingbot_triton.settings import Settings
from lingbot_triton.stages import Arrays
from lingbot_triton.world.camera import check_keys, check_poses
from lingbot_triton.world.errors import InputError
from lingbot_triton.world.family import find_family

FLAG_START = 1
FLAG_END = 2
ONLY_AT_START = (protocol.IMAGE.name, protocol.PROMPT.name, protocol.OPTIONS.name)
MAX_TOKEN_BYTES = 256
MAX_KEY_ELEMENTS = 64
RIGID_TOLERANCE = 1e-3
"""How far a rotation may be from orthonormal; single precision alone gives about 1e-6."""


def decode_request(
    arrays: Arrays, session_id: SessionId, flags: int, now: float, settings: Settings
) -> Request:
    """Read one request; what cannot be read becomes its `error`, so that flags still count."""
    starts, end = bool(flags & FLAG_START), bool(flags & FLAG_END)
    chunk = find_family(Path(settings.checkpoint)).chunk_latent_frames
    token, start, event, error = b"", None, None, None
    try:
        token = _token(arrays)
        if starts:
            start = _start(arrays, settings, chunk)
        else:
            _refuse_opening(arrays)
        event = _control(arrays, now, chunk)
    except WorldError as problem:
        error = problem
    return Request(session_id, token, start, end, event, error, starts)


def encode_response(response: Response) -> Arrays:
    """Every output but the frames; where a response has none, frames are [0, 1, 1, 3]."""
    arrays: Arrays = {
        protocol.STATUS.name: _text(response.status),
        protocol.MESSAGE.name: _text(response.message),
        protocol.CHUNK_INDEX_OUT.name: np.array([response.chunk_index], np.int32),
        protocol.FRAME_INDEX.name: np.array([response.frame_index], np.int32),
        protocol.INFO.name: _text(json.dumps(response.info)),
    }
    if response.frames is None:
        arrays[protocol.FRAMES.name] = np.zeros((0, 1, 1, 3), np.uint8)
    return arrays


def _text(text: str) -> np.ndarray[Any, Any]:
    return np.array([text.encode()], dtype=object)


def _single(arrays: Arrays, spec: protocol.TensorSpec, limit: int) -> bytes | None:
    """The one byte string of an input, None where the input is absent."""
    array = arrays.get(spec.name)
    if array is None:
        return None
    if array.size != 1:
        raise BadRequest(f"{spec.name} must hold 1 string, not {array.size}")
    value = array.reshape(-1)[0]
    data = value if isinstance(value, bytes) else str(value).encode()
    if len(data) > limit:
        raise BadRequest(f"{spec.name} has {len(data)} bytes; at most {limit} are taken")
    return data


def _token(arrays: Arrays) -> bytes:
    return _single(arrays, protocol.TOKEN, MAX_TOKEN_BYTES) or b""


def _refuse_opening(arrays: Arrays) -> None:
    for name in ONLY_AT_START:
        if name in arrays:
            raise BadRequest(f"{name} is given at START only")


def _start(arrays: Arrays, settings: Settings, chunk_latent_frames: int) -> Start | None:
    """What a START opens a session with; None where it brings nothing to open one with."""
    image = _single(arrays, protocol.IMAGE, settings.max_picture_bytes)
    prompt = _single(arrays, protocol.PROMPT, settings.max_prompt_bytes)
    options = _single(arrays, protocol.OPTIONS, settings.max_options_bytes)
    if image is None and prompt is None and options is None:
        return None
    if not image:
        raise BadRequest("START needs an image: the bytes of a PNG, JPEG or WebP file")
    if prompt is None:
        raise BadRequest("START needs a prompt")
    try:
        text = prompt.decode()
    except UnicodeDecodeError as error:
        raise BadRequest(f"the prompt is not UTF-8: {error.reason} at byte {error.start}") from None
    chosen = SessionOptions.parse(options or b"{}", settings.session_defaults)
    chosen.check_chunk(chunk_latent_frames)
    return Start(image, text, chosen)


def _control(arrays: Arrays, now: float, chunk_latent_frames: int) -> Control | None:
    index = arrays.get(protocol.CHUNK_INDEX.name)
    keys = arrays.get(protocol.KEYS_HELD.name)
    poses = arrays.get(protocol.POSES.name)
    if index is None:
        if keys is not None or poses is not None:
            raise BadRequest("a control needs a chunk_index")
        return None
    if index.size != 1:
        raise BadRequest(f"chunk_index must hold 1 number, not {index.size}")
    chunk_index = int(index.reshape(-1)[0])
    if chunk_index < 0:
        raise BadRequest(f"chunk_index is {chunk_index}; it must not be negative")
    if keys is not None and poses is not None:
        raise BadRequest("a control is keys or poses, not both")
    if poses is not None:
        return Control(chunk_index, now, poses=_poses(poses, chunk_latent_frames))
    return Control(chunk_index, now, keys=_keys(keys))


def _keys(array: np.ndarray[Any, Any] | None) -> str:
    """Keys held, in the order of `protocol.KEYS`, each once."""
    if array is None:
        return ""
    if array.size > MAX_KEY_ELEMENTS:
        raise BadRequest(f"keys holds {array.size} strings; at most {MAX_KEY_ELEMENTS} are taken")
    parts = [part if isinstance(part, bytes) else str(part).encode() for part in array.reshape(-1)]
    try:
        return check_keys(b"".join(parts).decode(errors="replace"))
    except InputError as error:
        raise BadRequest(str(error)) from None


def _poses(array: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """Rigid camera-to-world matrices as float64 [count, 4, 4]."""
    try:
        return check_poses(array, count, RIGID_TOLERANCE)
    except InputError as error:
        raise BadRequest(str(error)) from None
