"""What the command line plays: a session made from a plan, recorded to files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lingbot_client import controls, protocol
from lingbot_client.client import WorldClient
from lingbot_client.frames import Chunk
from lingbot_client.hud import with_keys
from lingbot_client.picture import Picture, default_picture
from lingbot_client.report import ChunkReport, Recording
from lingbot_client.session import WorldSession
from lingbot_client.trace import read_spans, write_trace
from lingbot_client.video import VideoWriter, contact_sheet

MIN_POSES = 3
"""Poses of the shortest chunk of any model. A session's `chunk_count` is asked for before the
server says how long the chunks of its model are; too high a count does no harm but memory."""


@dataclass(frozen=True)
class Plan:
    """What to play and where to put it."""

    image: Picture
    prompt: str
    keys: list[str]
    poses: NDArray[np.float32] | None
    """Instead of keys: [n, 4, 4]."""
    chunks: int | None
    """How many; None for as many as there are controls."""
    options: dict[str, Any]
    ahead: bool
    out: Path | None
    sheet: Path | None
    hud: bool = False
    """Whether the video shows the keys on a border."""

    @property
    def max_chunks(self) -> int:
        """Chunks that are played at most, whatever length the model's chunks have."""
        if self.chunks is not None:
            return self.chunks
        return len(self.keys) if self.poses is None else len(self.poses) // MIN_POSES or 1

    def controls(self, latent_frames: int) -> list[dict[str, Any]]:
        """Arguments of `send` for every chunk of so many latent frames; raises ValueError."""
        if self.poses is None:
            return controls.key_controls(self.keys, self.chunks)
        return controls.pose_controls(self.poses, self.chunks, latent_frames)


def make_plan(
    *,
    image: Path | None,
    keys: str,
    poses: Path | None,
    chunks: int | None,
    seed: int,
    size_area: str | None,
    pairs: tuple[str, ...],
    **rest: Any,
) -> Plan:
    """Turn what was typed into a plan; raises ValueError or OSError for what makes no sense."""
    plan = Plan(
        image=default_picture() if image is None else image,
        keys=controls.parse_keys(keys),
        poses=None if poses is None else controls.load_poses(poses),
        chunks=chunks,
        options=session_options(seed, size_area, pairs),
        **rest,
    )
    if "kv_window_frames" not in plan.options:
        plan.options.setdefault("chunk_count", plan.max_chunks)
    return plan


def session_options(seed: int, size_area: str | None, pairs: tuple[str, ...]) -> dict[str, Any]:
    """Session options from what was typed; raises ValueError."""
    options: dict[str, Any] = {"seed": seed}
    if size_area is not None:
        options["max_area"] = controls.parse_area(size_area)
    return options | dict(map(controls.parse_option, pairs))


def write_spans(recording: Recording, picture: Path | None, trace: Path | None) -> None:
    """Write what each stage did when, by the session's summary."""
    spans = read_spans(recording.summary)
    if picture is not None:
        from lingbot_client import timeline  # matplotlib takes a second to import

        timeline.draw(picture, [timeline.Panel(recording.ready.get("model", "session"), spans)])
    if trace is not None:
        write_trace(trace, spans, recording.ready.get("model", "session"))


async def play_plan(client: WorldClient, plan: Plan) -> Recording:
    """Play a plan; Ctrl-C ends it early, with everything so far closed and kept.

    Raises ValueError where the poses do not make whole chunks.
    """
    recording = Recording()
    kept: list[Chunk] = []
    with ExitStack() as stack:
        progress = stack.enter_context(progress_bar())
        task = progress.add_task("opening", total=plan.max_chunks)
        video = stack.enter_context(VideoWriter(plan.out)) if plan.out else None

        def take(chunk: Chunk) -> None:
            recording.chunks.append(ChunkReport.of(chunk))
            progress.advance(task)
            if plan.sheet is not None:
                kept.append(chunk)
            if video is not None:
                video.write(with_keys(chunk.frames, chunk.keys) if plan.hud else chunk.frames)

        session = client.open_session(plan.image, plan.prompt, **plan.options)
        try:
            async with client, session:
                recording.ready = session.ready
                steps = plan.controls(protocol.chunk_latent_frames(session.ready))
                progress.update(task, description="playing", total=len(steps))
                await _steer(session, steps, plan.ahead, take)
        except asyncio.CancelledError:
            recording.interrupted = True
        recording.summary = session.summary
    if plan.sheet is not None and kept:
        contact_sheet(kept, plan.sheet)
    return recording


async def _steer(
    session: WorldSession,
    steps: list[dict[str, Any]],
    ahead: bool,
    take: Callable[[Chunk], None],
) -> None:
    upcoming = iter(steps)
    for control in islice(upcoming, int(ahead)):
        await session.send(**control)
    for _ in steps:
        for control in islice(upcoming, 1):
            await session.send(**control)
        take(await session.next_chunk())


def progress_bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )
