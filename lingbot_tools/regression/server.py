"""Plays a folder's session through a running server.

The orchestrator's clients see frames only. With the server's secret the workers can be reached
too, and prompts, conditions, flows and latents are compared as Triton passes them on.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
from pathlib import Path
from typing import Any

import numpy as np
from lingbot_client import WorldClient
from numpy.typing import NDArray
from PIL import Image

from lingbot_tools.regression.compare import compare_contexts, compare_session
from lingbot_tools.regression.expectations import ExpectationError, Expectations, Variant
from lingbot_tools.regression.play import conditions_of, play
from lingbot_tools.regression.remote import remote_stages
from lingbot_tools.regression.report import Report
from lingbot_triton.world.errors import InputError
from lingbot_triton.world.geometry import Geometry


def play_on_server(url: str, expected: Path, secret: str | None = None) -> Report:
    """Play the session in `expected` on the server at `url` and compare what can be seen there.

    Raises ExpectationError for the folder, and the client's exceptions for the server.
    """
    expectations = Expectations.load(expected)
    report = Report("(the server's)", str(expected), f"server {url}")
    variants, unknown = expectations.variants()
    report.not_compared += unknown
    report.not_compared.append("token ids, schedule and controls: they never leave the stages")
    asyncio.run(_compare_frames(report, url, expectations, variants))
    if secret is None:
        what = "contexts, conditions, flows and latents"
        report.not_compared.append(f"{what}: LINGBOT_SECRET is not set")
        return report.finish()
    with remote_stages(url, secret) as (prompt, condition, denoise, decode):
        compare_contexts(report, prompt.encode, expectations)
        conditions = conditions_of(condition, expectations)
        for variant in variants:
            context = prompt.encode(variant.prompt)
            played = play(denoise, expectations, variant.options, context, conditions, decode)
            compare_session(report, expectations, variant, played, conditions)
    return report.finish()


async def _compare_frames(
    report: Report, url: str, expectations: Expectations, variants: list[Variant]
) -> None:
    async with WorldClient(url) as client:
        for variant in variants:
            expected = (expectations.tensors(variant.file) or {}).get("frames_u8")
            if expected is None:
                report.not_compared.append(f"{variant.file}.frames")
                continue
            frames = await _frames(client, expectations, variant)
            report.compare_frames(f"{variant.file}.frames", frames, expected)
            report.compare_repeat(frames, await _frames(client, expectations, variant))


def area_for(geometry: Geometry, picture: bytes) -> int:
    """The least `max_area` at which this picture's frames have just this size.

    Raises ExpectationError where none does: a server's frames have their picture's aspect ratio.
    """
    with Image.open(io.BytesIO(picture)) as image:
        width, height = image.size
    least = geometry.height * geometry.width
    for area in range(least, (geometry.height + 16) * (geometry.width + 16)):
        with contextlib.suppress(InputError):
            if Geometry.fit(height, width, area) == geometry:
                return area
    raise ExpectationError(
        f"no max_area makes frames of {geometry.width}x{geometry.height} of a picture of "
        f"{width}x{height}: on a server they have its aspect ratio"
    )


async def _frames(
    client: WorldClient, expectations: Expectations, variant: Variant
) -> NDArray[Any]:
    """The session's frames through the orchestrator, [n, H, W, 3]."""
    picture = expectations.picture_file.read_bytes()
    options = variant.options.differing()
    options["max_area"] = area_for(expectations.geometry, picture)
    async with client.open_session(picture, variant.prompt, **options) as session:
        frames = []
        for keys in expectations.keys:
            await session.send(keys)
            frames.append((await session.next_chunk()).frames)
    return np.concatenate(frames)
