"""One session: its cursors, its lanes, its calls and its end; and the table of those that live.

Nothing here knows torch, Triton or a clock. Everything runs on one event loop.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from lingbot_triton.errors import (
    NoSession,
    SessionFailed,
    SessionLimit,
    ShuttingDown,
    StageTimeout,
    WorldError,
)
from lingbot_triton.options import SessionOptions
from lingbot_triton.orchestrator.cursors import ConditionWindow, ControlCursor
from lingbot_triton.protocol import EndReason
from lingbot_triton.world.geometry import Geometry

log = logging.getLogger(__name__)
SessionId = int | str
SPANS_KEPT = 10_000
Result = TypeVar("Result")


@dataclass(eq=False)
class Session:
    """One session's whole state in the orchestrator."""

    id: SessionId
    token: bytes
    options: SessionOptions
    controls: ControlCursor
    conditions: ConditionWindow
    opened_at: float
    epoch: str = field(default_factory=lambda: secrets.token_hex(16))
    """Correlation id of this opening at the workers; a reused session id never meets old state."""
    addresses: dict[str, str] = field(default_factory=dict)
    """Correlation ids of stages at which it is not the epoch."""
    geometry: Geometry | None = None
    about: dict[str, Any] = field(default_factory=dict)
    """What the denoise worker that has the session says of itself."""
    last_activity: float = 0.0
    closing: bool = False
    """END was admitted: nothing more is."""
    failure: WorldError | None = None
    end_reason: EndReason | None = None
    ending: asyncio.Task[None] | None = None
    stages_open: set[str] = field(default_factory=set)
    denoise_lane: asyncio.Lock = field(default_factory=asyncio.Lock)
    decode_lane: asyncio.Lock = field(default_factory=asyncio.Lock)
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    prefetch: asyncio.Task[None] | None = None
    work: set[asyncio.Task[Any]] = field(default_factory=set)
    calls: dict[asyncio.Future[Any], str] = field(default_factory=dict)
    """Calls that are waited for, each with its stage; a stage has one of a session at a time."""
    late: dict[asyncio.Future[Any], str] = field(default_factory=dict)
    """Calls that nobody waits for any more, and that their worker still has to answer."""
    releases: set[asyncio.Task[None]] = field(default_factory=set)
    """Stages that have yet to let go of the session, which has ended."""
    on_failure: Callable[[Session], None] = lambda session: None
    frames_sent: int = 0
    chunks_done: int = 0
    condition_calls: int = 0
    steady_chunks: int = 0
    spans: deque[tuple[str, int, float, float]] = field(
        default_factory=lambda: deque(maxlen=SPANS_KEPT)
    )
    """What took how long, as (name, chunk, start, end): the newest, as sessions may be endless."""

    def authorize(self, token: bytes) -> None:
        """Raise NoSession unless `token` is the one the session was opened with."""
        if not self.owned_by(token):
            raise _no_session(self.id)

    def owned_by(self, token: bytes) -> bool:
        return hmac.compare_digest(self.token, token)

    def start(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Run `work` as a part of this session: it ends with it, and its failure fails it."""
        task = asyncio.get_running_loop().create_task(work)
        self.work.add(task)
        task.add_done_callback(self._worked)
        return task

    def _worked(self, task: asyncio.Task[Any]) -> None:
        self.work.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Remember the first failure and let the owner end the session."""
        if self.failure is None and self.end_reason is None:
            if not isinstance(error, WorldError):
                log.error("session %s met an internal error", self.epoch, exc_info=error)
                error = SessionFailed("the server met an internal error")
            self.failure = error
            self.on_failure(self)

    def check(self) -> None:
        """Raise what ended the session, if anything has."""
        if self.failure is not None:
            raise self.failure
        if self.end_reason is EndReason.SHUTDOWN:
            raise ShuttingDown("the server is shutting down")
        if self.end_reason is not None:
            raise SessionFailed(f"the session was ended ({self.end_reason.value})")

    async def call(
        self, stage: str, call: Awaitable[Result], timeout: float | None = None
    ) -> Result:
        """Await a stage call that goes on when the waiting task is cancelled.

        A call cannot be taken back from a worker, so a stage lets go of the session only after
        it. Raises StageTimeout after `timeout` seconds; the answer is dropped when it comes.
        """
        loop = asyncio.get_running_loop()
        answer = asyncio.ensure_future(call)
        outcome: asyncio.Future[Result] = loop.create_future()
        self.calls[outcome] = stage
        outcome.add_done_callback(self._called)
        timer = None
        if timeout is not None:
            error = StageTimeout(f"{stage} took longer than {timeout:g} s")
            timer = loop.call_later(timeout, self._give_up, answer, outcome, stage, error)
        answer.add_done_callback(functools.partial(_settle, outcome, timer))
        return await asyncio.shield(outcome)

    def _give_up(
        self,
        answer: asyncio.Future[Any],
        outcome: asyncio.Future[Any],
        stage: str,
        error: StageTimeout,
    ) -> None:
        if not answer.done():
            self.late[answer] = stage
            answer.add_done_callback(self._came_late)
            outcome.set_exception(error)

    def _called(self, outcome: asyncio.Future[Any]) -> None:
        del self.calls[outcome]
        if not outcome.cancelled():
            outcome.exception()  # marks it as seen when nobody waits any more

    def _came_late(self, answer: asyncio.Future[Any]) -> None:
        del self.late[answer]
        if not answer.cancelled():
            answer.exception()

    def calls_at(self, stage: str) -> list[asyncio.Future[Any]]:
        """Calls to `stage` that are waited for."""
        return [call for call, where in self.calls.items() if where == stage]

    def late_at(self, stage: str) -> list[asyncio.Future[Any]]:
        """Calls that `stage` has yet to answer, though nobody waits for them."""
        return [answer for answer, where in self.late.items() if where == stage]

    @property
    def busy(self) -> bool:
        """Whether anything is admitted that has not been answered."""
        return not self.opened.is_set() or self.chunks_done < self.controls.next_index

    def summary(self) -> dict[str, Any]:
        """What the closing answer and the log line say."""
        return {
            "reason": self.end_reason.value if self.end_reason else None,
            "error": str(self.failure) if self.failure else None,
            "chunks": self.chunks_done,
            "frames": self.frames_sent,
            "condition_calls": self.condition_calls,
            "steady_chunks": self.steady_chunks,
        }


def _no_session(session_id: SessionId) -> NoSession:
    """Who lacks the token does not learn whether there is a session."""
    return NoSession(f"no session {session_id!r} with this token: it was closed, or never opened")


def _settle(
    outcome: asyncio.Future[Result],
    timer: asyncio.TimerHandle | None,
    answer: asyncio.Future[Result],
) -> None:
    """An answer is its call's outcome, unless the call was given up."""
    if timer is not None:
        timer.cancel()
    if outcome.done():
        return
    if answer.cancelled():
        outcome.cancel()
    elif (error := answer.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(answer.result())


@dataclass(frozen=True)
class _Failed:
    """What is kept of a failed session: its error itself holds on to pictures and tensors."""

    token: bytes
    sentence: str


class SessionTable:
    """The live sessions, never more than `limit`; a session counts until it is fully released."""

    REMEMBERED_FAILURES = 256

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.live: set[Session] = set()
        self._by_id: dict[SessionId, Session] = {}
        self._failed: dict[SessionId, _Failed] = {}

    def __len__(self) -> int:
        return len(self.live)

    def find(self, session_id: SessionId) -> Session | None:
        return self._by_id.get(session_id)

    def get(self, session_id: SessionId, token: bytes) -> Session:
        """The session that a request is for; raises NoSession or SessionFailed."""
        session = self._by_id.get(session_id)
        if session is None:
            raise self._gone(session_id, token)
        session.authorize(token)
        if session.failure is not None:
            raise SessionFailed(f"the session has failed: {session.failure}")
        if session.closing or session.end_reason is not None:
            raise NoSession(f"session {session_id!r} is closing")
        return session

    def _gone(self, session_id: SessionId, token: bytes) -> WorldError:
        failed = self._failed.get(session_id)
        if failed is None:
            return _no_session(session_id)
        if not hmac.compare_digest(failed.token, token):
            return _no_session(session_id)
        return SessionFailed(f"the session has failed: {failed.sentence}")

    def add(self, session: Session) -> Session | None:
        """Enter `session`, taking its id over from a live one, which is returned.

        Raises SessionLimit when the table is full; a session whose id is taken over makes room.
        """
        previous = self._by_id.get(session.id)
        replaced = previous is not None and previous in self.live
        if len(self.live) - replaced >= self.limit:
            raise SessionLimit(f"{len(self.live)} sessions are open, at most {self.limit} may be")
        self._failed.pop(session.id, None)
        self._by_id[session.id] = session
        self.live.add(session)
        return previous

    def remove(self, session: Session) -> None:
        """A session is fully released: it makes room for another one."""
        self.forget(session)
        self.live.discard(session)

    def forget(self, session: Session) -> None:
        """Give a session's id free; a failed one is remembered for its error."""
        if self._by_id.get(session.id) is session:
            del self._by_id[session.id]
            if session.failure is not None:
                self._failed[session.id] = _Failed(session.token, str(session.failure))
                while len(self._failed) > self.REMEMBERED_FAILURES:
                    del self._failed[next(iter(self._failed))]
