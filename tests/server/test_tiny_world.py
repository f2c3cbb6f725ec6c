"""The world that comes with the project, through the whole server, against its renderer."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from lingbot_client import WorldClient
from PIL import Image

from lingbot_tools.tiny_world.measures import Frames, psnr, truth_of, turn_of
from lingbot_tools.tiny_world.scene import Scene, chunk_frames
from lingbot_triton.triton.server import ServerProcess
from tests.server.conftest import StartServer

SCENES = (15, 12)
KEYS = ("l", "j", "w")


@pytest.fixture(scope="module")
def server(shared_server: StartServer) -> ServerProcess:
    return shared_server(condition_cache_bytes=0)


def walked(server: ServerProcess, scene: Scene, keys: tuple[str, ...]) -> Frames:
    """All frames of a session that starts from the scene's first picture."""

    async def scenario() -> Frames:
        picture = Image.fromarray(truth_of(scene, ("",))[0])
        chunks = []
        async with (
            WorldClient(server.grpc) as client,
            client.open_session(picture, scene.prompt, chunk_count=len(keys)) as session,
        ):
            for held in keys:
                await session.send(held)
                chunks.append(await session.next_chunk())
        assert [chunk.keys for chunk in chunks] == list(keys)
        return np.concatenate([chunk.frames for chunk in chunks])

    return asyncio.run(scenario())


@pytest.mark.parametrize("number", SCENES)
def test_what_is_seen_follows_the_keys_as_the_renderer_does(
    server: ServerProcess, number: int
) -> None:
    scene = Scene(number)
    film, truth = walked(server, scene, KEYS), truth_of(scene, KEYS)
    assert film.shape == truth.shape
    left = film[: chunk_frames(0).stop]
    right = film[chunk_frames(1).start - 1 : chunk_frames(1).stop]
    assert turn_of(left) < 0 < turn_of(right)
    frozen = np.repeat(truth[:1], len(truth), 0)
    assert psnr(film, truth) > psnr(frozen, truth) + 3
