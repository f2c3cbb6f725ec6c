from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from lingbot_client import ProtocolError, protocol
from lingbot_client.protocol import Response, control, tensor

from tests.unit.client.fake_server import outputs


@pytest.mark.parametrize(
    ("value", "dtype", "items"),
    [
        ("héllo", np.object_, ["héllo".encode()]),
        (b"\x89PNG", np.object_, [b"\x89PNG"]),
        (7, np.int32, [7]),
        ({"seed": 7}, np.object_, [b'{"seed": 7}']),
        (["w", "l"], np.object_, [b"w", b"l"]),
        ([], np.object_, []),
    ],
)
def test_a_plain_value_becomes_its_tensor(value: Any, dtype: type, items: list[Any]) -> None:
    array = tensor(value)
    assert array.dtype == dtype
    assert array.shape == (len(items),)
    assert array.tolist() == items


def test_an_array_stays_as_it_is_however_wrong() -> None:
    array = np.zeros((2, 2), np.float64)
    assert tensor(array) is array


def test_a_value_without_a_tensor_is_an_error() -> None:
    with pytest.raises(TypeError, match="float"):
        tensor(1.5)


def test_keys_are_split_and_none_is_one_empty_key() -> None:
    assert control("wl", None) == {"keys": ["w", "l"]}
    assert control(["w", "l"], None) == {"keys": ["w", "l"]}
    assert control("", None) == {"keys": [""]}


def test_poses_become_float32_and_must_be_matrices() -> None:
    poses = control("", np.eye(4)[None].repeat(3, axis=0))["poses"]
    assert poses.dtype == np.float32
    assert poses.shape == (3, 4, 4)
    with pytest.raises(ValueError, match=r"\[3, 4\]"):
        control("", np.zeros((3, 4)))


def test_a_control_is_not_keys_and_poses_at_once() -> None:
    with pytest.raises(ValueError, match="not both"):
        control("w", np.zeros((3, 4, 4)))


def test_a_response_is_read_from_its_tensors() -> None:
    frames = np.ones((2, 4, 6, 3), np.uint8)
    tensors = outputs("FRAMES", chunk_index=3, frame_index=33, frames=frames, info={"part": 1})
    response = Response.from_tensors(tensors, received_at=1.5)
    assert (response.status, response.message) == ("FRAMES", "")
    assert (response.chunk_index, response.frame_index, response.received_at) == (3, 33, 1.5)
    assert response.info == {"part": 1}
    assert response.frames is frames
    assert response.raise_for_status() is response


def test_a_response_needs_a_status_only() -> None:
    response = Response.from_tensors({"status": np.array([b"CLOSED"], dtype=object)}, 0.0)
    assert (response.message, response.chunk_index, response.info) == ("", -1, {})
    assert response.frames.shape == (0, 0, 0, 3)


@pytest.mark.parametrize(
    "broken",
    [
        {"status": None},
        {"status": np.array([], dtype=object)},
        {"info": np.array([b"{"], dtype=object)},
        {"message": np.array([b"\xff"], dtype=object)},
    ],
)
def test_what_cannot_be_read_is_a_protocol_error(broken: dict[str, Any]) -> None:
    tensors = {**outputs("READY"), **broken}
    tensors = {name: array for name, array in tensors.items() if array is not None}
    with pytest.raises(ProtocolError):
        Response.from_tensors(tensors, 0.0)


def test_the_names_are_those_the_server_declares() -> None:
    from lingbot_triton import protocol as served

    assert [spec.name for spec in served.PUBLIC_INPUTS] == [
        protocol.IMAGE,
        protocol.PROMPT,
        protocol.OPTIONS,
        protocol.CHUNK_INDEX,
        protocol.KEYS,
        protocol.POSES,
        protocol.TOKEN,
    ]
    assert [spec.name for spec in served.PUBLIC_OUTPUTS] == list(outputs("READY"))
    assert served.ORCHESTRATOR.name == protocol.MODEL
