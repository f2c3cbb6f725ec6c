"""What server tests do again and again: play sessions, read metrics, make pictures."""

from __future__ import annotations

import asyncio
import http.client
import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from lingbot_client import Chunk, WorldClient, WorldSession
from PIL import Image

from lingbot_triton.triton.server import ServerProcess

PROMPT = "a castle on a hill"
KEYS = ("w", "wl", "", "sai", "djk")


def picture(width: int = 96, height: int = 64) -> Image.Image:
    """A picture with something in it: two gradients."""
    y, x = np.mgrid[0:height, 0:width]
    rgb = np.stack([x * 255 // width, y * 255 // height, (x + y) % 256], -1)
    return Image.fromarray(rgb.astype(np.uint8))


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    data = io.BytesIO()
    image.save(data, kind)
    return data.getvalue()


async def play(
    client: WorldClient,
    keys: Sequence[str] = KEYS,
    *,
    ahead: int = 1,
    image: Any = None,
    prompt: str = PROMPT,
    **options: Any,
) -> list[Chunk]:
    """Play one session, with up to `ahead` controls sent before their frames are there."""
    chunks: list[Chunk] = []
    image = picture() if image is None else image
    async with client.open_session(image, prompt, **options) as session:
        for sent, held in enumerate(keys):
            await session.send(held)
            if sent + 1 - len(chunks) >= ahead:
                chunks.append(await session.next_chunk())
        while len(chunks) < len(keys):
            chunks.append(await session.next_chunk())
    return chunks


def video(chunks: Sequence[Chunk]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """All frames of a session, [frames, H, W, 3]."""
    return np.concatenate([chunk.frames for chunk in chunks])


def metrics(server: ServerProcess) -> dict[str, float]:
    """The server's own metrics: `name{label="value"}` to value."""
    host, _, port = server.metrics.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    finally:
        connection.close()
    return {name: float(value) for name, value in re.findall(r"^(lingbot_\S+) (\S+)$", text, re.M)}


def sessions(server: ServerProcess) -> float:
    """Sessions in any state, as the gauges say."""
    return sum(
        value for name, value in metrics(server).items() if name.startswith("lingbot_sessions{")
    )


async def eventually(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Return once `condition()`; fail where it does not hold after `seconds` either."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        if asyncio.get_running_loop().time() > deadline:
            assert condition(), f"not within {seconds} s"
            return
        await asyncio.sleep(0.05)


async def admitted(session: WorldSession, chunk_index: int = 0) -> None:
    """Return once the server has admitted this chunk's control, which was sent before."""
    (answer,) = await session.request(chunk_index=chunk_index)
    assert answer.status == "DUPLICATE"


async def reported(server: ServerProcess, client: WorldClient) -> None:
    """Return once all that has happened is in the orchestrator's metrics, whose updates queue up.

    Only its gauges come later, with the next sweep.
    """
    name = 'lingbot_rejections_total{code="NO_SESSION"}'
    before = metrics(server)[name]
    (answer,) = await client.request("nobody", start=True, end=True)
    assert answer.status == "NO_SESSION"
    await eventually(lambda: metrics(server)[name] > before)
