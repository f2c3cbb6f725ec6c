"""One session: its two cursors, its window of prefetched conditions, its lanes and its end.

Nothing here knows torch, Triton or a clock. Everything runs on one event loop.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

import numpy as np

from lingbot_triton.errors import (
    Duplicate,
    LengthLimit,
    NoSession,
    OutOfOrder,
    SessionFailed,
    SessionLimit,
    ShuttingDown,
    WindowFull,
    WorldError,
)
from lingbot_triton.options import Geometry, SessionOptions

log = logging.getLogger(__name__)
SessionId = int | str
Result = TypeVar("Result")


@dataclass(frozen=True)
class Control:
    """What the person does during one chunk: keys held, or a camera pose per latent frame."""

    chunk_index: int
    accepted_at: float
    """Monotonic seconds; every latency is measured from here."""
    keys: str = ""
    poses: np.ndarray[Any, Any] | None = None
    """Camera-to-world matrices [latent frames, 4, 4], OpenCV axes, or None where keys steer."""


@dataclass(frozen=True, eq=False)
class Condition:
    """A chunk's encoded condition; `steady` says that every later one is equal to it."""

    tensor: Any
    steady: bool = False
    bytes: int = 0


@dataclass(frozen=True, eq=False)
class Latent:
    """A chunk's clean latent and what each denoising step took."""

    tensor: Any
    step_seconds: tuple[float, ...] = ()


class ControlCursor:
    """Admits controls in strict order, at most `window` of them ahead of their denoise."""

    def __init__(self, window: int, last: int | None) -> None:
        self.window = window
        self.last = last
        self.next_index = 0
        self.ahead = 0

    def admit(self, index: int) -> None:
        """Take the control of chunk `index`, or raise and leave everything as it was."""
        if index < self.next_index:
            raise Duplicate(f"chunk {index} was admitted before; the next is {self.next_index}")
        if index > self.next_index:
            raise OutOfOrder(f"chunk {index} is not next; the next is {self.next_index}")
        if self.last is not None and index > self.last:
            raise LengthLimit(f"chunk {index} is past the session's last chunk, {self.last}")
        if self.ahead >= self.window:
            raise WindowFull(
                f"chunk {index} came too early: {self.ahead} controls wait for their denoise, "
                f"at most {self.window} may"
            )
        self.next_index += 1
        self.ahead += 1

    def begin(self) -> None:
        """The oldest waiting control's denoise starts."""
        self.ahead -= 1


class ConditionWindow:
    """Conditions of one session: requested, held and in use together never exceed the depth.

    At depth 0 nothing is encoded ahead: a condition is requested when its control asks for it.
    Once a condition is steady it serves every later chunk and nothing is requested any more.
    """

    def __init__(self, depth: int, last: int | None) -> None:
        self.depth = depth
        self.last = last
        self.next_index = 0
        self.alive = 0
        self.steady: Condition | None = None
        self._held: deque[asyncio.Future[Condition]] = deque()

    @property
    def may_request(self) -> bool:
        """Whether the next condition may be requested ahead of its control."""
        ended = self.last is not None and self.next_index > self.last
        return self.alive < self.depth and self.steady is None and not ended

    def request(self) -> tuple[int, asyncio.Future[Condition]]:
        """Reserve room for the next condition; the caller fulfils the future."""
        index = self.next_index
        self.next_index += 1
        self.alive += 1
        future: asyncio.Future[Condition] = asyncio.get_running_loop().create_future()
        self._held.append(future)
        return index, future

    def arrived(self, future: asyncio.Future[Condition], condition: Condition) -> None:
        """The encoder answered a request."""
        if condition.steady:
            self.steady = condition
        if not future.done():
            future.set_result(condition)

    async def take(self) -> Condition:
        """The next chunk's condition, waiting for the encoder where it is not there yet."""
        if self.serves_steady:
            assert self.steady is not None
            self.alive += 1
            return self.steady
        return await self._held.popleft()

    @property
    def serves_steady(self) -> bool:
        """Whether `take` gives the steady condition once more."""
        return not self._held and self.steady is not None

    @property
    def empty(self) -> bool:
        """Whether `take` would find neither a request nor a steady condition."""
        return not self._held and self.steady is None

    @property
    def held_bytes(self) -> int:
        """Bytes of the conditions that wait for their control, the steady one included."""
        held = [future.result() for future in self._held if _arrived(future)]
        if self.steady is not None and self.steady not in held:
            held.append(self.steady)
        return sum(condition.bytes for condition in held)

    def release(self) -> None:
        """The denoise that used the oldest taken condition has finished."""
        self.alive -= 1

    def discard(self) -> None:
        """Drop everything; whoever waits in `take` is woken by its own task's cancellation."""
        for future in self._held:
            future.cancel()
        self._held.clear()
        self.steady = None
        self.alive = 0


def _arrived(future: asyncio.Future[Condition]) -> bool:
    return future.done() and not future.cancelled()


class EndReason(Enum):
    """Why a session ended; the label of the closing metric and of the log line."""

    END = "end"
    FAILED = "failed"
    IDLE = "idle"
    CANCELLED = "cancelled"
    REPLACED = "replaced"
    SHUTDOWN = "shutdown"


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
    geometry: Geometry | None = None
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
    commit: asyncio.Task[None] | None = None
    prefetch: asyncio.Task[None] | None = None
    work: set[asyncio.Task[Any]] = field(default_factory=set)
    calls: set[asyncio.Future[Any]] = field(default_factory=set)
    on_failure: Callable[[Session], None] = lambda session: None
    frames_sent: int = 0
    chunks_done: int = 0
    condition_calls: int = 0
    steady_chunks: int = 0
    spans: list[tuple[str, int, float, float]] = field(default_factory=list)

    def authorize(self, token: bytes) -> None:
        """Raise NoSession unless `token` is the one the session was opened with."""
        if not hmac.compare_digest(self.token, token):
            raise NoSession(f"no session {self.id!r} with this token")

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

    async def call(self, call: Awaitable[Result]) -> Result:
        """Await a stage call that goes on when the waiting task is cancelled.

        A call cannot be taken back from a worker, so a session ends only after its last one.
        """
        future = asyncio.ensure_future(call)
        self.calls.add(future)
        future.add_done_callback(self._called)
        return await asyncio.shield(future)

    def _called(self, future: asyncio.Future[Any]) -> None:
        self.calls.discard(future)
        if not future.cancelled():
            future.exception()  # marks it as seen when nobody waits any more

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


class SessionTable:
    """The live sessions, never more than `limit`; a session counts until it is fully released."""

    REMEMBERED_FAILURES = 256

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.live: set[Session] = set()
        self._by_id: dict[SessionId, Session] = {}
        self._failed: dict[SessionId, Session] = {}

    def __len__(self) -> int:
        return len(self.live)

    def find(self, session_id: SessionId) -> Session | None:
        return self._by_id.get(session_id)

    def get(self, session_id: SessionId, token: bytes) -> Session:
        """The session that a request is for; raises NoSession or SessionFailed."""
        session = self._by_id.get(session_id) or self._failed.get(session_id)
        if session is None:
            raise NoSession(f"no session {session_id!r}: it was closed, or never opened")
        session.authorize(token)
        if session.failure is not None:
            raise SessionFailed(f"the session has failed: {session.failure}")
        if session.closing or session.end_reason is not None:
            raise NoSession(f"session {session_id!r} is closing")
        return session

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
        """Forget a session that is fully released; a failed one is remembered for its error."""
        self.live.discard(session)
        if self._by_id.get(session.id) is session:
            del self._by_id[session.id]
            if session.failure is not None:
                self._failed[session.id] = session
                while len(self._failed) > self.REMEMBERED_FAILURES:
                    del self._failed[next(iter(self._failed))]
