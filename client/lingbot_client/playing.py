"""What the command line plays: a session made from a plan, recorded to files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lingbot_client import controls
from lingbot_client.client import WorldClient
from lingbot_client.frames import Chunk
from lingbot_client.hud import with_keys
from lingbot_client.picture import Picture, default_picture
from lingbot_client.report import ChunkReport, Recording
from lingbot_client.session import WorldSession
from lingbot_client.trace import read_spans, write_trace
from lingbot_client.video import VideoWriter, contact_sheet


@dataclass(frozen=True)
class Plan:
    """What to play and where to put it."""

    image: Picture
    prompt: str
    controls: list[dict[str, Any]]
    options: dict[str, Any]
    ahead: bool
    out: Path | None
    sheet: Path | None
    hud: bool = False
    """Whether the video shows the keys on a border."""


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
    steps = (
        controls.key_controls(controls.parse_keys(keys), chunks)
        if poses is None
        else controls.pose_controls(controls.load_poses(poses), chunks)
    )
    options = session_options(seed, size_area, pairs)
    if "kv_window_frames" not in options:
        options.setdefault("chunk_count", len(steps))
    return Plan(
        image=default_picture() if image is None else image,
        controls=steps,
        options=options,
        **rest,
    )


def session_options(seed: int, size_area: str | None, pairs: tuple[str, ...]) -> dict[str, Any]:
    """Session options from what was typed; raises ValueError."""
    options: dict[str, Any] = {"seed": seed}
    if size_area is not None:
        options["max_area"] = controls.parse_area(size_area)
    return options | dict(map(controls.parse_option, pairs))


def write_spans(recording: Recording, picture: Path | None, trace: Path | None) -> None:
    """Write what the server told of its stages."""
    spans = read_spans(recording.summary)
    if picture is not None:
        from lingbot_client import timeline  # matplotlib takes a second to import

        timeline.draw(picture, [timeline.Panel(recording.ready.get("model", "session"), spans)])
    if trace is not None:
        write_trace(trace, spans, recording.ready.get("model", "session"))


async def play_plan(client: WorldClient, plan: Plan) -> Recording:
    """Play a plan; Ctrl-C ends it early, with everything so far closed and kept."""
    recording = Recording()
    kept: list[Chunk] = []
    with ExitStack() as stack:
        progress = stack.enter_context(progress_bar())
        task = progress.add_task("opening", total=len(plan.controls))
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
                progress.update(task, description="playing")
                await _steer(session, plan, take)
        except asyncio.CancelledError:
            recording.interrupted = True
        recording.summary = session.summary
    if plan.sheet is not None and kept:
        contact_sheet(kept, plan.sheet)
    return recording


async def _steer(session: WorldSession, plan: Plan, take: Callable[[Chunk], None]) -> None:
    upcoming = iter(plan.controls)
    for control in islice(upcoming, int(plan.ahead)):
        await session.send(**control)
    for _ in plan.controls:
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
