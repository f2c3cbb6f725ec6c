"""One session: its cursors, its lanes, its calls, its outbox and its end.

Nothing here knows torch, Triton or a clock. Everything runs on one event loop.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from lingbot_triton.errors import NoSession, SessionFailed, ShuttingDown, WorldError
from lingbot_triton.options import SessionOptions
from lingbot_triton.orchestrator.calls import CallLedger
from lingbot_triton.orchestrator.cursors import ConditionWindow, ControlCursor
from lingbot_triton.orchestrator.outbox import Outbox
from lingbot_triton.orchestrator.requests import SessionId
from lingbot_triton.protocol import EndReason
from lingbot_triton.world.geometry import Geometry

log = logging.getLogger(__name__)
SPANS_KEPT = 10_000
Result = TypeVar("Result")


@dataclass
class End:
    """How far the end of a session is, and why it ends."""

    closing: bool = False
    """END was admitted: nothing more is."""
    failure: WorldError | None = None
    reason: EndReason | None = None
    task: asyncio.Task[None] | None = None
    releases: set[asyncio.Task[None]] = field(default_factory=set)
    """Stages that have yet to release the session, which has ended."""


@dataclass
class Counters:
    """What the closing summary counts."""

    frames_sent: int = 0
    chunks_done: int = 0
    condition_calls: int = 0
    steady_chunks: int = 0


class Trace:
    """What took how long, as (name, chunk, start, end): the newest, as sessions may be endless."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self._spans: deque[tuple[str, int, float, float]] = deque(maxlen=SPANS_KEPT)

    def add(self, name: str, chunk_index: int, start: float, end: float) -> None:
        """Note a span, in monotonic seconds, where spans are wanted."""
        if self.enabled:
            self._spans.append((name, chunk_index, start, end))

    def since(self, zero: float) -> list[list[Any]]:
        """The spans as JSON takes them, in seconds after `zero`."""
        return [
            [name, chunk, round(start - zero, 6), round(end - zero, 6)]
            for name, chunk, start, end in self._spans
        ]


@dataclass(eq=False)
class Session:
    """One session's whole state in the orchestrator."""

    id: SessionId
    token: bytes
    options: SessionOptions
    chunk_latent_frames: int
    controls: ControlCursor
    conditions: ConditionWindow
    opened_at: float
    on_failure: Callable[[Session], None] = lambda session: None
    correlation_id: str = field(default_factory=lambda: secrets.token_hex(16))
    """This opening's id at the stages: a session id that is used again never meets old state."""
    stage_correlation_ids: dict[str, str] = field(default_factory=dict)
    """Correlation ids at the stages where it is another one."""
    geometry: Geometry | None = None
    worker_info: dict[str, Any] = field(default_factory=dict)
    """What the denoise worker that has the session reports of itself."""
    last_activity: float = 0.0
    held_stages: set[str] = field(default_factory=set)
    """Stages at which the session has a state, or may have one."""
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    denoise_lane: asyncio.Lock = field(default_factory=asyncio.Lock)
    decode_lane: asyncio.Lock = field(default_factory=asyncio.Lock)
    prefetch: asyncio.Task[None] | None = None
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    calls: CallLedger = field(default_factory=CallLedger)
    outbox: Outbox = field(default_factory=Outbox)
    counters: Counters = field(default_factory=Counters)
    end: End = field(default_factory=End)
    trace: Trace = field(init=False)

    def __post_init__(self) -> None:
        self.trace = Trace(self.options.trace)

    def correlation_id_at(self, stage: str) -> str:
        """The session's correlation id at a stage."""
        return self.stage_correlation_ids.get(stage, self.correlation_id)

    def authorize(self, token: bytes) -> None:
        """Raise NoSession unless `token` is the one the session was opened with."""
        if not self.owned_by(token):
            raise no_session(self.id)

    def owned_by(self, token: bytes) -> bool:
        return hmac.compare_digest(self.token, token)

    def start(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Run `work` as a part of this session: it ends with it, and its failure fails it."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Remember the first failure and let the owner end the session."""
        if self.end.failure is None and self.end.reason is None:
            if not isinstance(error, WorldError):
                log.error("session %s met an internal error", self.correlation_id, exc_info=error)
                error = SessionFailed("the server met an internal error")
            self.end.failure = error
            self.on_failure(self)

    def check(self) -> None:
        """Raise what ended the session, if anything has."""
        if self.end.failure is not None:
            raise self.end.failure
        if self.end.reason is EndReason.SHUTDOWN:
            raise ShuttingDown("the server is shutting down")
        if self.end.reason is not None:
            raise SessionFailed(f"the session was ended ({self.end.reason.value})")

    @property
    def busy(self) -> bool:
        """Whether anything is admitted that was not responded to yet."""
        return not self.opened.is_set() or self.counters.chunks_done < self.controls.next_index


def no_session(session_id: SessionId) -> NoSession:
    """A client without the token does not learn whether there is such a session."""
    return NoSession(f"no session {session_id!r} with this token: it was closed, or never opened")
