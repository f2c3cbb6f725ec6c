"""What each request means: opening, controlling and closing sessions, and answering, always.

`Service.accept` decides everything about order before its first await; the rest runs as tasks.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from lingbot_triton import metrics
from lingbot_triton.errors import BadRequest, SessionFailed, ShuttingDown, StageDead, WorldError
from lingbot_triton.options import (
    CHUNK_LATENT_FRAMES,
    FRAMES_PER_SECOND,
    Geometry,
    SessionOptions,
    video_frames,
)
from lingbot_triton.pipeline import Clock, FramePart, Opening, Pipeline
from lingbot_triton.recovery import Recovery, Workers
from lingbot_triton.session import (
    ConditionWindow,
    Control,
    ControlCursor,
    EndReason,
    Session,
    SessionId,
    SessionTable,
)
from lingbot_triton.settings import Settings

log = logging.getLogger(__name__)

READY = "READY"
FRAMES = "FRAMES"
CLOSED = "CLOSED"
SWEEP_SECONDS = 0.25


@dataclass(frozen=True)
class Start:
    """What a START carries beside a control."""

    image: bytes
    prompt: str
    options: SessionOptions


@dataclass(frozen=True)
class Request:
    """One decoded request. `error` stands where its tensors could not be read."""

    session_id: SessionId
    token: bytes = b""
    start: Start | None = None
    end: bool = False
    control: Control | None = None
    error: WorldError | None = None
    starts: bool = False
    """Whether START was flagged, also when what it carries could not be read."""


@dataclass(frozen=True)
class Answer:
    """One response, before it becomes tensors. `frames` is opaque here; None means none."""

    status: str
    message: str = ""
    chunk_index: int = -1
    frame_index: int = -1
    frames: Any = None
    info: dict[str, Any] = field(default_factory=dict)


class Reply(Protocol):
    """The way back to the client for one request."""

    async def send(self, answer: Answer, *, last: bool) -> None:
        """Send one response; `last` carries the final flag. After the final one, nothing goes."""

    def cancelled(self) -> bool:
        """Whether the client is gone or took the request back."""


class Service:
    """The sessions of one server."""

    def __init__(
        self,
        settings: Settings,
        pipeline: Pipeline,
        load_picture: Callable[[bytes], Awaitable[Any]],
        clock: Clock,
        info: dict[str, Any] | None = None,
        workers: Workers | None = None,
    ) -> None:
        self.settings = settings
        self.pipeline = pipeline
        self.clock = clock
        self.table = SessionTable(settings.max_sessions)
        self.info = info or {}
        self.observer = pipeline.observer
        self.stopping = False
        self._load_picture = load_picture
        self._tasks: set[asyncio.Task[None]] = set()
        self._replies: dict[Reply, Session] = {}
        self._watchers: list[asyncio.Task[None]] = []
        self.recovery = (
            Recovery(workers, self.table, self.observer, self._spawn) if workers else None
        )

    def accept(self, request: Request, reply: Reply) -> None:
        """Admit or refuse `request`, without awaiting, and answer it in the background."""
        self.watch()
        try:
            session, work = self._admit(request, reply)
        except WorldError as error:
            self._spawn(self._refuse(request, reply, error))
        else:
            self._spawn(self._serve(session, work, request, reply))

    def watch(self) -> None:
        """Start looking after sessions and workers, unless that is done already."""
        if not self._watchers:
            loop = asyncio.get_running_loop()
            self._watchers.append(loop.create_task(self._sweep()))
            if self.recovery is not None:
                self._watchers.append(loop.create_task(self.recovery.watch()))

    def _admit(self, request: Request, reply: Reply) -> tuple[Session, list[asyncio.Task[None]]]:
        if self.stopping:
            raise ShuttingDown("the server is shutting down")
        if request.starts and not self._resumes(request):
            session, work = self._admit_start(request, reply)
        else:
            session, work = self.table.get(request.session_id, request.token), []
            if request.error is not None:
                raise request.error
            if request.control is not None:
                session.controls.admit(request.control.chunk_index)
            elif not request.end:
                raise BadRequest("a request needs a control (chunk_index and keys or poses) or END")
        session.last_activity = self.clock()
        session.closing = request.end
        if request.control is not None:
            send = self._sender(session, reply, request.end)
            work.append(session.start(self.pipeline.run_chunk(session, request.control, send)))
        return session, work

    def _resumes(self, request: Request) -> bool:
        """Whether a START goes on with a live session instead of opening one.

        Triton forgets a sequence at its END, whoever sent it, and then takes nothing more without
        START. So a session's owner may say START again, with the token and nothing to open.
        """
        live = self.table.find(request.session_id)
        return request.start is None and request.error is None and live is not None

    def _admit_start(
        self, request: Request, reply: Reply
    ) -> tuple[Session, list[asyncio.Task[None]]]:
        live = self.table.find(request.session_id)
        if live is not None:
            live.authorize(request.token)
        if request.error is not None:
            raise request.error
        if request.start is None:
            raise BadRequest("START needs an image and a prompt")
        if self.recovery is not None:
            self.recovery.check()
        session = self._new_session(request, request.start.options)
        if request.control is not None:
            session.controls.admit(request.control.chunk_index)
        previous = self.table.add(session)
        if previous is not None:
            self._spawn(self._end(previous, EndReason.REPLACED))
        final = request.control is None and not request.end
        opening = self._open(session, previous, request.start, reply, final)
        return session, [session.start(opening)]

    def _new_session(self, request: Request, options: SessionOptions) -> Session:
        depth = self.settings.prefetch_depth
        if options.prefetch_depth is not None:
            depth = min(depth, options.prefetch_depth)
        return Session(
            id=request.session_id,
            token=request.token,
            options=options,
            controls=ControlCursor(self.settings.control_window, options.last_chunk),
            conditions=ConditionWindow(depth, options.last_chunk),
            opened_at=self.clock(),
            on_failure=self._failed,
        )

    def _failed(self, session: Session) -> None:
        if isinstance(session.failure, StageDead) and self.recovery is not None:
            self.recovery.died(session.failure.stage)
        self._spawn(self._end(session, EndReason.FAILED))

    async def _open(
        self, session: Session, previous: Session | None, start: Start, reply: Reply, final: bool
    ) -> None:
        if previous is not None:
            await self._end(previous, EndReason.REPLACED)
        picture = await self._load_picture(start.image)
        height, width = picture.shape[:2]
        session.geometry = Geometry.fit(height, width, session.options.max_area)
        await self.pipeline.open_session(session, Opening(picture, start.prompt))
        session.last_activity = self.clock()
        await reply.send(Answer(READY, info=self._ready_info(session)), last=final)
        session.opened.set()
        self.observer.add(metrics.OPENED)

    def _ready_info(self, session: Session) -> dict[str, Any]:
        assert session.geometry is not None
        return self.info | {
            "width": session.geometry.width,
            "height": session.geometry.height,
            "frames_per_second": FRAMES_PER_SECOND,
            "chunk_latent_frames": CHUNK_LATENT_FRAMES,
            "first_chunk_frames": video_frames(CHUNK_LATENT_FRAMES, first=True),
            "chunk_frames": video_frames(CHUNK_LATENT_FRAMES, first=False),
            "control_window": session.controls.window,
            "prefetch_depth": session.conditions.depth,
            "chunk_count": None if session.options.endless else session.options.chunk_count,
            "options": json.loads(session.options.to_json()),
        }

    def _sender(
        self, session: Session, reply: Reply, ends: bool
    ) -> Callable[[FramePart], Coroutine[Any, Any, None]]:
        async def send(part: FramePart) -> None:
            info = {
                "part": part.part,
                "parts": part.parts,
                "keys": part.keys,
                "ms": part.milliseconds,
            }
            answer = Answer(FRAMES, "", part.chunk_index, part.frame_index, part.frames, info)
            session.last_activity = self.clock()
            self._measure(part)
            await reply.send(answer, last=part.last and not ends)

        return send

    def _measure(self, part: FramePart) -> None:
        seconds = part.milliseconds["since_acceptance"] / 1000
        if part.part == 0:
            self.observer.add(metrics.FIRST_FRAMES, seconds)
        if part.last:
            self.observer.add(metrics.WHOLE_CHUNK, seconds)
            self.observer.add(metrics.CHUNKS)
        self.observer.add(metrics.FRAMES, part.count)

    async def _serve(
        self, session: Session, work: list[asyncio.Task[None]], request: Request, reply: Reply
    ) -> None:
        self._replies[reply] = session
        try:
            for task in work:
                await asyncio.wait([task])
                if task.cancelled():
                    session.check()
                task.result()
            if request.end:
                await self._end(session, EndReason.END)
        except WorldError as error:
            index = request.control.chunk_index if request.control else -1
            self.observer.add(metrics.REJECTIONS, 1, error.code)
            await reply.send(_error(error, index), last=not request.end)
        except Exception:
            log.exception("a request of session %s met an internal error", session.epoch)
            failure = SessionFailed("the server met an internal error")
            await reply.send(_error(failure), last=not request.end)
        finally:
            del self._replies[reply]
        if request.end:
            await self._close(session, reply)

    async def _refuse(self, request: Request, reply: Reply, error: WorldError) -> None:
        """Answer a request that was not admitted; its END still ends the session it names."""
        index = request.control.chunk_index if request.control else -1
        self.observer.add(metrics.REJECTIONS, 1, error.code)
        ends = request.end and not request.starts
        session = self.table.find(request.session_id) if ends else None
        if session is not None and session.token == request.token and not session.closing:
            await reply.send(_error(error, index), last=False)
            await self._close(session, reply)
        else:
            await reply.send(_error(error, index), last=True)

    async def _close(self, session: Session, reply: Reply) -> None:
        await self._end(session, EndReason.END)
        await reply.send(Answer(CLOSED, info=self._closing_info(session)), last=True)

    async def _end(self, session: Session, reason: EndReason) -> None:
        """End `session` and forget it, once; everybody who asks waits for the same end."""
        first = session.ending is None
        await self.pipeline.end_session(session, reason)
        if first:
            self.table.remove(session)
            assert session.end_reason is not None
            self.observer.add(metrics.CLOSED, 1, session.end_reason.value)
            self._report()
            line = {"epoch": session.epoch} | self._summary(session)
            log.info("session ended %s", json.dumps(line))

    def _summary(self, session: Session) -> dict[str, Any]:
        return session.summary() | {"seconds": round(self.clock() - session.opened_at, 3)}

    def _closing_info(self, session: Session) -> dict[str, Any]:
        summary = self._summary(session)
        if session.options.trace:
            summary["spans"] = [
                [name, chunk, *(round(at - session.opened_at, 6) for at in times)]
                for name, chunk, *times in session.spans
            ]
        return summary

    async def _sweep(self) -> None:
        """End sessions whose client is gone or silent, and report what is there."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self._report()
            for reply, session in list(self._replies.items()):
                if reply.cancelled() and session.ending is None:
                    self._spawn(self._end(session, EndReason.CANCELLED))
            deadline = self.clock() - self.settings.session_idle_seconds
            for session in list(self.table.live):
                if not session.busy and session.ending is None and session.last_activity < deadline:
                    self._spawn(self._end(session, EndReason.IDLE))

    def _report(self) -> None:
        """Set the gauges."""
        live = self.table.live
        closing = sum(session.closing for session in live)
        opening = sum(not session.opened.is_set() and not session.closing for session in live)
        states = {"opening": opening, "open": len(live) - opening - closing, "closing": closing}
        for state, count in states.items():
            self.observer.set(metrics.SESSIONS, count, state)
        windows = [session.conditions for session in live]
        self.observer.set(metrics.CONDITIONS, sum(window.alive for window in windows))
        self.observer.set(metrics.CONDITION_BYTES, sum(window.held_bytes for window in windows))
        self.observer.set(metrics.CALLS, sum(len(session.calls) for session in live))

    async def shut_down(self, grace_seconds: float) -> None:
        """Refuse what is new, give running chunks the grace time, then end every session."""
        self.stopping = True
        deadline = self.clock() + grace_seconds
        while any(session.busy for session in self.table.live) and self.clock() < deadline:
            await asyncio.sleep(0.02)
        ends = [self._end(session, EndReason.SHUTDOWN) for session in list(self.table.live)]
        await asyncio.gather(*ends)
        for watcher in self._watchers:
            watcher.cancel()
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _error(error: WorldError, chunk_index: int = -1) -> Answer:
    return Answer(error.code, str(error), chunk_index)
