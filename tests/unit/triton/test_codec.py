"""Whatever a client sends: one clear, short sentence, or the request it means."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from lingbot_triton.errors import BadRequest
from lingbot_triton.settings import Settings
from lingbot_triton.triton.codec import FLAG_END, FLAG_START, decode_request

IMAGE = b"whatever stands for a picture"
NOW = 7.5


def arrays(**inputs: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Inputs as the Python backend gives them; those that are None are absent."""
    return {name: _array(name, value) for name, value in inputs.items() if value is not None}


def _array(name: str, value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, np.ndarray):
        return value
    if name == "chunk_index":
        return np.array([value], np.int32)
    if isinstance(value, dict):
        value = json.dumps(value)
    strings = value if isinstance(value, list) else [value]
    return np.array([s if isinstance(s, bytes) else s.encode() for s in strings], object)


def decoded(flags: int = 0, **inputs: Any) -> Any:
    return decode_request(arrays(**inputs), "an id", flags, NOW, Settings())


def started(**changes: Any) -> Any:
    return decoded(FLAG_START | FLAG_END, **{"image": IMAGE, "prompt": "a hill"} | changes)


def check_refused(request: Any, sentence: str) -> None:
    """It is a bad request, for this reason, which stays short whatever the client sent."""
    assert type(request.error) is BadRequest
    message = str(request.error)
    assert sentence in message
    assert "\n" not in message
    assert len(message) < 700


BAD_STARTS: dict[str, tuple[dict[str, Any], str]] = {
    "no picture": ({"image": None}, "START needs an image"),
    "empty picture": ({"image": b""}, "START needs an image"),
    "two pictures": ({"image": [b"a", b"b"]}, "image must hold 1 string, not 2"),
    "no prompt": ({"prompt": None}, "START needs a prompt"),
    "not UTF-8": ({"prompt": b"\xff\xfe"}, "not UTF-8: invalid start byte at byte 0"),
    "huge prompt": ({"prompt": "a" * 2**20}, "prompt has 1048576 bytes; at most 16384"),
    "large prompt": ({"prompt": "a" * 20_000}, "prompt has 20000 bytes; at most 16384"),
    "huge picture": ({"image": bytes(17 * 2**20)}, "bytes; at most 16777216 are taken"),
    "no JSON": ({"options": b"{seed"}, "options are not valid JSON"),
    "no object": ({"options": b"[1]"}, "must be a JSON object, not list"),
    "huge options": ({"options": b" " * 2**20}, "options has 1048576 bytes; at most 16384"),
    "deep options": ({"options": b"[" * 16_000}, "options are not valid JSON"),
    "unknown option": ({"options": {"sed": 1}}, "unknown option 'sed'; known options: seed"),
    "long name": ({"options": {"a" * 10_000: 1}}, "unknown option 'aaa"),
    "wrong type": ({"options": {"seed": "1"}}, "option 'seed' must be of type int, not '1'"),
    "bool for int": ({"options": {"seed": True}}, "option 'seed' must be of type int"),
    "float for int": ({"options": {"chunk_count": 2.5}}, "option 'chunk_count' must be of type"),
    "infinite": ({"options": b'{"shift": Infinity}'}, "option 'shift' must be a finite number"),
    "many digits": ({"options": b'{"seed":1' + b"0" * 4_000 + b"}"}, "'seed' is 1000"),
    "large value": ({"options": b'{"shift":1' + b"0" * 400 + b"}"}, "finite number"),
    "out of range": ({"options": {"max_area": 10**9}}, "'max_area' is 1000000000; it must lie"),
    "short list": ({"options": {"intrinsics": [1, 2]}}, "must be a list of 4 numbers"),
    "small window": (
        {"options": {"kv_window_frames": 2}},
        "option 'kv_window_frames' is 2; it must lie between 3 and",
    ),
    "sinks alone": ({"options": {"kv_sink_frames": 2}}, "needs option 'kv_window_frames'"),
    "long token": ({"token": "t" * 300}, "token has 300 bytes; at most 256"),
    "huge token": ({"token": "t" * 2**20}, "token has 1048576 bytes; at most 256"),
}


@pytest.mark.parametrize("case", BAD_STARTS)
def test_a_bad_start_is_refused_and_its_flags_count_all_the_same(case: str) -> None:
    changes, sentence = BAD_STARTS[case]
    request = started(**changes)
    check_refused(request, sentence)
    assert (request.start, request.starts, request.end) == (None, True, True)


def _rigid(index: Any, value: float) -> np.ndarray[Any, Any]:
    """Three poses that stand still, with one number changed."""
    poses = np.tile(np.eye(4, dtype=np.float32), (3, 1, 1))
    poses[index] = value
    return poses


BAD_CONTROLS: dict[str, tuple[dict[str, Any], str]] = {
    "no index": ({"keys": ["w"]}, "a control needs a chunk_index"),
    "two indices": ({"chunk_index": np.zeros(2, np.int32)}, "must hold 1 number, not 2"),
    "negative": ({"chunk_index": -1}, "chunk_index is -1; it must not be negative"),
    "unknown key": ({"chunk_index": 0, "keys": ["x"]}, "unknown key 'x'; keys are w a s d i j k l"),
    "capital": ({"chunk_index": 0, "keys": ["W"]}, "unknown key 'W'"),
    "not ASCII": ({"chunk_index": 0, "keys": ["ö"]}, "unknown key 'ö'"),
    "long key": ({"chunk_index": 0, "keys": ["x" * 2**20]}, "unknown key 'x'"),
    "many keys": ({"chunk_index": 0, "keys": ["w"] * 1000}, "keys holds 1000 strings; at most 64"),
    "more keys": ({"chunk_index": 0, "keys": ["w"] * 100_000}, "keys holds 100000 strings"),
    "both": (
        {"chunk_index": 0, "keys": ["w"], "poses": _rigid((0, 0, 3), 1)},
        "keys or poses, not both",
    ),
    "NaN": ({"chunk_index": 0, "poses": _rigid((1, 0, 3), np.nan)}, "not finite"),
    "not rigid": ({"chunk_index": 0, "poses": _rigid((1, 0, 0), 2)}, "is not a rotation"),
    "mirrored": ({"chunk_index": 0, "poses": _rigid((1, 0, 0), -1)}, "is not a rotation"),
    "last row": ({"chunk_index": 0, "poses": _rigid((2, 3, 0), 1)}, "last row is not 0 0 0 1"),
    "two poses": (
        {"chunk_index": 0, "poses": np.eye(4)[None].repeat(2, 0).astype(np.float32)},
        "poses has shape [2, 4, 4]; it must be [3, 4, 4]",
    ),
    "many poses": ({"chunk_index": 0, "poses": np.zeros((10_000, 4, 4), np.float32)}, "[10000, 4"),
    "late picture": ({"chunk_index": 0, "image": b"x"}, "image is given at START only"),
    "late prompt": ({"chunk_index": 0, "prompt": "a hill"}, "prompt is given at START only"),
    "late options": ({"options": {"seed": 1}}, "options is given at START only"),
}


@pytest.mark.parametrize("case", BAD_CONTROLS)
def test_a_bad_control_is_refused(case: str) -> None:
    inputs, sentence = BAD_CONTROLS[case]
    request = decoded(**inputs)
    check_refused(request, sentence)
    assert (request.event, request.starts, request.end) == (None, False, False)


def test_a_start_and_its_first_control_are_read() -> None:
    options = {"seed": 3, "kv_window_frames": 15}
    request = started(prompt="ein Hügel", options=options, token="mine", chunk_index=0, keys=["w"])
    assert request.error is None
    assert (request.session_id, request.token, request.starts) == ("an id", b"mine", True)
    assert (request.start.image, request.start.prompt) == (IMAGE, "ein Hügel")
    assert (request.start.options.seed, request.start.options.kv_window_frames) == (3, 15)
    assert request.start.options.max_area == Settings().session_defaults.max_area
    assert (request.event.chunk_index, request.event.keys) == (0, "w")
    assert request.event.accepted_at == NOW


def test_keys_are_held_together_once_and_in_their_own_order() -> None:
    assert decoded(chunk_index=4, keys=["lw", "w", ""]).event.keys == "wl"
    assert decoded(chunk_index=4).event.keys == ""


def test_poses_are_read_as_they_are() -> None:
    poses = _rigid((2, 0, 3), 0.25)
    control = decoded(chunk_index=2**31 - 1, poses=poses).event
    assert (control.chunk_index, control.keys) == (2**31 - 1, "")
    np.testing.assert_array_equal(control.poses, poses)


def test_a_start_with_nothing_to_open_a_session_with_opens_none() -> None:
    request = decoded(FLAG_START, token="mine", chunk_index=1)
    assert (request.error, request.start, request.starts) == (None, None, True)
    assert request.event.chunk_index == 1
