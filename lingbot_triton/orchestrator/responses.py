"""What is told to the client, word for word, and to the metrics beside it."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from lingbot_triton import metrics
from lingbot_triton.errors import SessionFailed, WorldError
from lingbot_triton.orchestrator.requests import CLOSED, FRAMES, READY, Answer, FramePart
from lingbot_triton.orchestrator.session import Session
from lingbot_triton.world.family import WORLD_FAST
from lingbot_triton.world.geometry import FRAMES_PER_SECOND, video_frames

CHUNK = WORLD_FAST.chunk_latent_frames


def ready(session: Session, server: dict[str, Any]) -> Answer:
    """The session is open: what the server and its worker say of themselves, and its limits."""
    assert session.geometry is not None
    told = {
        "width": session.geometry.width,
        "height": session.geometry.height,
        "frames_per_second": FRAMES_PER_SECOND,
        "chunk_latent_frames": CHUNK,
        "first_chunk_frames": video_frames(CHUNK, first=True),
        "chunk_frames": video_frames(CHUNK, first=False),
        "control_window": session.controls.window,
        "prefetch_depth": session.conditions.depth,
        "chunk_count": None if session.options.endless else session.options.chunk_count,
        "options": json.loads(session.options.to_json()),
    }
    return Answer(READY, info=server | session.about | told)


def frames(part: FramePart) -> Answer:
    """Some frames of a chunk."""
    info = {"part": part.part, "parts": part.parts, "keys": part.keys, "ms": part.milliseconds}
    return Answer(FRAMES, "", part.chunk_index, part.frame_index, part.frames, info)


def summary(session: Session, now: float) -> dict[str, Any]:
    """What became of a session."""
    return session.summary() | {"seconds": round(now - session.opened_at, 3)}


def closed(session: Session, now: float) -> Answer:
    """The session has ended: its summary, with the spans of every stage where it is traced."""
    info = summary(session, now)
    if session.options.trace:
        info["spans"] = [
            [name, chunk, *(round(at - session.opened_at, 6) for at in times)]
            for name, chunk, *times in session.spans
        ]
    return Answer(CLOSED, info=info)


def refusal(error: Exception, chunk_index: int = -1) -> Answer:
    """An error's code and sentence; of an error that is not ours, a client learns nothing."""
    if not isinstance(error, WorldError):
        error = SessionFailed("the server met an internal error")
    return Answer(error.code, str(error), chunk_index)


def measure_part(observer: metrics.Observer, part: FramePart) -> None:
    """Count a part, and where it is a chunk's first or last, how long that took."""
    seconds = part.milliseconds["since_acceptance"] / 1000
    if part.part == 0:
        observer.add(metrics.FIRST_FRAMES, seconds)
    if part.last:
        observer.add(metrics.WHOLE_CHUNK, seconds)
        observer.add(metrics.CHUNKS)
    observer.add(metrics.FRAMES, part.count)


def set_gauges(observer: metrics.Observer, live: Collection[Session]) -> None:
    """Report the sessions there are and what they hold."""
    closing = sum(session.closing for session in live)
    opening = sum(not session.opened.is_set() and not session.closing for session in live)
    # The other way round, a session would be in no state for the moment between two of them.
    states = {"closing": closing, "open": len(live) - opening - closing, "opening": opening}
    for state, count in states.items():
        observer.set(metrics.SESSIONS, count, state)
    windows = [session.conditions for session in live]
    observer.set(metrics.CONDITIONS, sum(window.alive for window in windows))
    observer.set(metrics.CONDITION_BYTES, sum(window.held_bytes for window in windows))
    calls = sum(len(session.calls) + len(session.late) for session in live)
    observer.set(metrics.CALLS, calls)
