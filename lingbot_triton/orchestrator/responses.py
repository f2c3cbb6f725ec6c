"""Responses to the client, word for word, and the metrics that are recorded with them."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from lingbot_triton import metrics
from lingbot_triton.errors import SessionFailed, WorldError
from lingbot_triton.orchestrator.requests import CLOSED, READY, FramePart, Response
from lingbot_triton.orchestrator.session import Session
from lingbot_triton.world.geometry import FRAMES_PER_SECOND, video_frames


def ready(session: Session, server_info: dict[str, Any]) -> Response:
    """The session is open: facts about the server and its worker, and the session's limits."""
    assert session.geometry is not None
    chunk = session.chunk_latent_frames
    info = {
        "width": session.geometry.width,
        "height": session.geometry.height,
        "frames_per_second": FRAMES_PER_SECOND,
        "chunk_latent_frames": chunk,
        "first_chunk_frames": video_frames(chunk, first=True),
        "chunk_frames": video_frames(chunk, first=False),
        "control_window": session.controls.window,
        "prefetch_depth": session.conditions.depth,
        "chunk_count": None if session.options.endless else session.options.chunk_count,
        "options": json.loads(session.options.to_json()),
    }
    return Response(READY, info=server_info | session.worker_info | info)


def summary(session: Session, now: float) -> dict[str, Any]:
    """What became of a session: for the closing response and the log line."""
    end, counters = session.end, session.counters
    return {
        "reason": end.reason.value if end.reason else None,
        "error": str(end.failure) if end.failure else None,
        "chunks": counters.chunks_done,
        "frames": counters.frames_sent,
        "condition_calls": counters.condition_calls,
        "steady_chunks": counters.steady_chunks,
        "seconds": round(now - session.opened_at, 3),
    }


def closed(session: Session, now: float) -> Response:
    """The session has ended: its summary, with the spans of every stage where it is traced."""
    info = summary(session, now)
    if session.options.trace:
        info["spans"] = session.trace.since(session.opened_at)
    return Response(CLOSED, info=info)


def error_response(error: Exception, chunk_index: int = -1) -> Response:
    """An error's code and sentence; the details of an internal error are not for clients."""
    if not isinstance(error, WorldError):
        error = SessionFailed("the server met an internal error")
    return Response(error.code, str(error), chunk_index)


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
    closing = sum(session.end.closing for session in live)
    opening = sum(not session.opened.is_set() and not session.end.closing for session in live)
    # The other way round, a session would be in no state for the moment between two of them.
    states = {"closing": closing, "open": len(live) - opening - closing, "opening": opening}
    for state, count in states.items():
        observer.set(metrics.SESSIONS, count, state)
    windows = [session.conditions for session in live]
    observer.set(metrics.CONDITIONS, sum(window.outstanding for window in windows))
    observer.set(metrics.CONDITION_BYTES, sum(window.held_bytes for window in windows))
    observer.set(metrics.CALLS, sum(len(session.calls) for session in live))
