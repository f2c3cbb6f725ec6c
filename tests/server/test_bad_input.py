"""Whatever a client sends: the right code, one clear sentence, and everybody else goes on."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import numpy as np
import pytest
from lingbot_client import WorldClient, WorldSession
from PIL import Image

from lingbot_triton.triton.server import ServerProcess
from tests.server.conftest import StartServer
from tests.server.play import encoded, eventually, picture, play, sessions


@pytest.fixture(scope="module")
def server(shared_server: StartServer) -> ServerProcess:
    return shared_server()


def _blank(width: int, height: int) -> bytes:
    return encoded(Image.new("1", (width, height)))


BAD_STARTS: dict[str, tuple[dict[str, Any], str]] = {
    "no picture": ({"image": None}, "START needs an image"),
    "empty picture": ({"image": b""}, "START needs an image"),
    "truncated": ({"image": encoded(picture())[:-100]}, "cannot be decoded"),
    "1x1": ({"image": _blank(1, 1)}, "has 1x1 pixels; each side needs at least 16"),
    "12000x9000": ({"image": _blank(12000, 9000)}, "has 12000x9000 pixels; at most 40000000"),
    "too thin": ({"image": _blank(16, 16000)}, "each side needs at least 16"),
    "text": ({"image": b"this is not a picture"}, "not a PNG, JPEG or WebP"),
    "other format": ({"image": encoded(picture(), "GIF")}, "not a PNG, JPEG or WebP"),
    "no prompt": ({"prompt": None}, "START needs a prompt"),
    "not UTF-8": ({"prompt": b"\xff\xfe"}, "not UTF-8: invalid start byte at byte 0"),
    "long prompt": ({"prompt": "castle " * 600}, "tokens; at most 512"),
    "huge prompt": ({"prompt": "a" * 20_000}, "prompt has 20000 bytes; at most 16384"),
    "no JSON": ({"options": b"{seed"}, "options are not valid JSON"),
    "no object": ({"options": b"[1]"}, "must be a JSON object, not list"),
    "unknown option": ({"options": {"sed": 1}}, "unknown option 'sed'; known options: seed"),
    "wrong type": ({"options": {"seed": "1"}}, "option 'seed' must be of type int, not '1'"),
    "bool for int": ({"options": {"seed": True}}, "option 'seed' must be of type int"),
    "float for int": ({"options": {"chunk_count": 2.5}}, "option 'chunk_count' must be of type"),
    "infinite": ({"options": b'{"shift": Infinity}'}, "option 'shift' must be a finite number"),
    "out of range": ({"options": {"max_area": 10**9}}, "'max_area' is 1000000000; it must lie"),
    "short list": ({"options": {"intrinsics": [1, 2]}}, "must be a list of 4 numbers"),
    "small window": (
        {"options": {"kv_window_frames": 2}},
        "option 'kv_window_frames' is 2; it must lie between 3 and",
    ),
    "sinks alone": ({"options": {"kv_sink_frames": 2}}, "needs option 'kv_window_frames'"),
    "two images": ({"image": np.array([b"a", b"b"], object)}, "image"),
    "long token": ({"token": "t" * 300}, "token has 300 bytes; at most 256"),
    "control ahead": ({"chunk_index": 1, "keys": ["w"]}, "chunk 1 is not next; the next is 0"),
}


@pytest.mark.parametrize("case", BAD_STARTS)
def test_a_bad_start_is_refused_and_leaves_no_session(server: ServerProcess, case: str) -> None:
    changes, sentence = BAD_STARTS[case]
    inputs = {"image": encoded(picture()), "prompt": "a hill"} | changes
    inputs = {name: value for name, value in inputs.items() if value is not None}

    async def scenario() -> None:
        async with WorldClient(server.grpc) as client:
            if case == "two images":  # Triton itself knows the shape
                with pytest.raises(Exception, match="unexpected shape for input 'image'"):
                    await client.request("bad", start=True, end=True, **inputs)
                return
            code = "OUT_OF_ORDER" if case == "control ahead" else "BAD_REQUEST"
            for _ in range(2):  # whoever tries again is told the same
                answers = await client.request("bad", start=True, end=True, **inputs)
                assert answers[0].status == code
                assert sentence in answers[0].message
                assert "\n" not in answers[0].message
                assert len(answers[0].message) < 700

    asyncio.run(scenario())
    asyncio.run(eventually(lambda: sessions(server) == 0))


def _rigid(change: Any) -> np.ndarray[Any, Any]:
    poses = np.tile(np.eye(4, dtype=np.float32), (3, 1, 1))
    change(poses)
    return poses


def _set(index: Any, value: float) -> Any:
    def change(poses: np.ndarray[Any, Any]) -> None:
        poses[index] = value

    return change


BAD_CONTROLS: dict[str, tuple[dict[str, Any], str]] = {
    "no index": ({"keys": ["w"]}, "a control needs a chunk_index"),
    "nothing": ({}, "a request needs a control"),
    "unknown key": ({"chunk_index": 0, "keys": ["x"]}, "unknown key 'x'; keys are w a s d i j k l"),
    "capital": ({"chunk_index": 0, "keys": ["W"]}, "unknown key 'W'"),
    "not ASCII": ({"chunk_index": 0, "keys": ["ö"]}, "unknown key 'ö'"),
    "many keys": ({"chunk_index": 0, "keys": ["w"] * 1000}, "keys holds 1000 strings; at most 64"),
    "both": (
        {"chunk_index": 0, "keys": ["w"], "poses": _rigid(_set((0, 0, 3), 1))},
        "keys or poses, not both",
    ),
    "NaN": ({"chunk_index": 0, "poses": _rigid(_set((1, 0, 3), np.nan))}, "not finite"),
    "not rigid": ({"chunk_index": 0, "poses": _rigid(_set((1, 0, 0), 2))}, "is not a rotation"),
    "mirrored": ({"chunk_index": 0, "poses": _rigid(_set((1, 0, 0), -1))}, "is not a rotation"),
    "last row": (
        {"chunk_index": 0, "poses": _rigid(_set((2, 3, 0), 1))},
        "last row is not 0 0 0 1",
    ),
    "two poses": (
        {"chunk_index": 0, "poses": np.eye(4)[None].repeat(2, 0).astype(np.float32)},
        "poses has shape [2, 4, 4]; it must be [3, 4, 4]",
    ),
    "late picture": ({"chunk_index": 0, "image": b"x"}, "image is given at START only"),
    "late options": ({"options": {"seed": 1}}, "options is given at START only"),
}


async def _bad_controls(session: WorldSession) -> None:
    for inputs, sentence in BAD_CONTROLS.values():
        (answer,) = await session.request(**inputs)
        assert (answer.status, sentence in answer.message) == ("BAD_REQUEST", True), answer.message


def test_bad_controls_do_the_session_no_harm(server: ServerProcess) -> None:
    async def scenario() -> None:
        async with WorldClient(server.grpc) as client:
            expected = await play(client, ["w", "l"])
            async with client.open_session(picture(), "a castle on a hill") as session:
                frames = []
                for held in ("w", "l"):
                    await _bad_controls(session)
                    await session.send(held)
                    frames.append((await session.next_chunk()).frames)
            for chunk, got in zip(expected, frames, strict=True):
                np.testing.assert_array_equal(got, chunk.frames)

    asyncio.run(scenario())


def _sixteen_bit() -> bytes:
    grey = (np.arange(96 * 64, dtype=np.uint32) * 10 % 65536).astype(np.uint16).reshape(64, 96)
    return encoded(Image.fromarray(grey))


def _turned() -> bytes:
    """A JPEG whose EXIF says that it is to be shown turned by 90 degrees."""
    data = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(64, 96).save(data, "JPEG", exif=exif.tobytes())
    return data.getvalue()


GOOD_PICTURES = {
    "grey": encoded(picture().convert("L")),
    "palette": encoded(picture().convert("P")),
    "RGBA": encoded(picture().convert("RGBA")),
    "grey alpha": encoded(picture().convert("LA")),
    "bilevel": encoded(picture().convert("1")),
    "16 bit": _sixteen_bit(),
    "JPEG": encoded(picture(), "JPEG"),
    "WebP": encoded(picture(), "WEBP"),
    "turned": _turned(),
}


@pytest.mark.parametrize("kind", GOOD_PICTURES)
def test_every_kind_of_picture_opens_a_session(server: ServerProcess, kind: str) -> None:
    async def scenario() -> None:
        inputs = {"image": GOOD_PICTURES[kind], "prompt": "a hill"}
        async with WorldClient(server.grpc) as client:
            answers = await client.request("kind", start=True, end=True, chunk_index=0, **inputs)
        ready = answers[0].info
        assert [answer.status for answer in answers][0::4] == ["READY", "CLOSED"]
        assert (ready["width"], ready["height"]) == (96, 64), json.dumps(ready)
        assert answers[1].frames.shape == (1, 64, 96, 3)

    asyncio.run(scenario())
