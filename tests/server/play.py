"""What server tests do again and again: play sessions, read metrics, make pictures."""

from __future__ import annotations

import asyncio
import io
import json
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner
from lingbot_client import Chunk, WorldClient, WorldSession
from PIL import Image

from lingbot_tools.bench.__main__ import main as bench_main
from lingbot_triton.triton.scrape import scrape, total
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


def page(server: ServerProcess) -> str:
    """The page of the server's metrics, as text."""
    with urllib.request.urlopen(f"http://{server.metrics}/metrics", timeout=60) as response:
        text: str = response.read().decode()
    return text


def sessions(server: ServerProcess) -> float:
    """Sessions in any state, as the gauges say."""
    return total(scrape(server.metrics), "lingbot_sessions")


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
    before = scrape(server.metrics)[name]
    (answer,) = await client.request("nobody", start=True, end=True)
    assert answer.status == "NO_SESSION"
    await eventually(lambda: scrape(server.metrics)[name] > before)


def bench(*arguments: object, folder: Path) -> tuple[dict[str, Any], str]:
    """Run a command of `scripts/bench`, which must not fail: its report, and what it printed."""
    report = folder / "report.json"
    done = CliRunner().invoke(bench_main, [*map(str, arguments), "--json", str(report)])
    assert done.exit_code == 0, done.output
    read: dict[str, Any] = json.loads(report.read_text())
    return read, done.stdout
