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
    return shared_server(condition_cache_bytes=0)


def _blank(width: int, height: int) -> bytes:
    return encoded(Image.new("1", (width, height)))


BAD_STARTS: dict[str, tuple[dict[str, Any], str]] = {
    "picture": ({"image": encoded(picture())[:-100]}, "cannot be decoded"),
    "too thin": ({"image": _blank(16, 16000)}, "each side needs at least 16"),
    "prompt": ({"prompt": "castle " * 600}, "tokens; at most 512"),
    "options": ({"options": {"sed": 1}}, "unknown option 'sed'; known options: seed"),
    "control ahead": ({"chunk_index": 2**31 - 1}, "chunk 2147483647 is not next; the next is 0"),
    "two images": ({"image": np.array([b"a", b"b"], object)}, "image"),
}
"""One of each place where something is refused; what is parsed, `tests/unit` has all cases of."""


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


BAD_CONTROLS: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "a request needs a control"),
    "keys": ({"chunk_index": 0, "keys": ["ö"]}, "unknown key 'ö'"),
    "poses": ({"chunk_index": 0, "poses": np.zeros((3, 4, 4), np.float32)}, "is not a rotation"),
    "late picture": ({"chunk_index": 0, "image": b"x"}, "image is given at START only"),
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


def _turned() -> bytes:
    """A JPEG whose EXIF says that it is to be shown turned by 90 degrees."""
    data = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(64, 96).save(data, "JPEG", exif=exif.tobytes())
    return data.getvalue()


def test_a_picture_opens_a_session_of_its_upright_size(server: ServerProcess) -> None:
    async def scenario() -> None:
        inputs = {"image": _turned(), "prompt": "a hill"}
        async with WorldClient(server.grpc) as client:
            answers = await client.request("kind", start=True, end=True, chunk_index=0, **inputs)
        ready = answers[0].info
        assert [answer.status for answer in answers][0::4] == ["READY", "CLOSED"]
        assert (ready["width"], ready["height"]) == (96, 64), json.dumps(ready)
        assert answers[1].frames.shape == (1, 64, 96, 3)

    asyncio.run(scenario())
