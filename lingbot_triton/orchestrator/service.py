"""What each request means: opening, controlling and closing sessions, and answering, always.

`Service.accept` decides everything about order before its first await; the rest runs as tasks.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from lingbot_triton import metrics
from lingbot_triton.errors import BadRequest, SessionLimit, ShuttingDown, StageDead, WorldError
from lingbot_triton.orchestrator import responses
from lingbot_triton.orchestrator.admission import Admission, Admitted, chunk_of
from lingbot_triton.orchestrator.ending import end_session
from lingbot_triton.orchestrator.pipeline import Clock, Opening, Pipeline
from lingbot_triton.orchestrator.recovery import Recovery, Workers
from lingbot_triton.orchestrator.requests import FramePart, Reply, Request, Start
from lingbot_triton.orchestrator.session import Session, SessionTable
from lingbot_triton.protocol import EndReason
from lingbot_triton.settings import Settings
from lingbot_triton.world.errors import InputError
from lingbot_triton.world.geometry import Geometry

log = logging.getLogger(__name__)

SWEEP_SECONDS = 0.25


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
        self.table = table = SessionTable(settings.max_sessions)
        self.info = info or {}
        self.observer = pipeline.observer
        self.stopping = False
        self._load_picture = load_picture
        self._tasks: set[asyncio.Task[None]] = set()
        self._replies: dict[Reply, Session] = {}
        self._watchers: list[asyncio.Task[None]] = []
        self.recovery = Recovery(workers, table, self.observer, self._spawn) if workers else None
        self._admission = Admission(settings, table, clock, self._failed, self._check_stages)

    def accept(self, request: Request, reply: Reply) -> None:
        """Admit or refuse `request`, without awaiting, and answer it in the background."""
        self.watch()
        try:
            if self.stopping:
                raise ShuttingDown("the server is shutting down")
            admitted = self._admission.admit(request)
        except WorldError as error:
            self._spawn(self._refuse(request, reply, error))
        else:
            work = self._begin(admitted, request, reply)
            self._spawn(self._serve(admitted.session, work, request, reply))

    def watch(self) -> None:
        """Start looking after sessions and workers, unless that is done already."""
        if not self._watchers:
            loop = asyncio.get_running_loop()
            self._watchers.append(loop.create_task(self._sweep()))
            if self.recovery is not None:
                self._watchers.append(loop.create_task(self.recovery.watch()))

    def _check_stages(self) -> None:
        if self.recovery is not None:
            self.recovery.check()

    def _failed(self, session: Session) -> None:
        if isinstance(session.failure, StageDead) and self.recovery is not None:
            self.recovery.died(session.failure.stage)
        self._spawn(self._end(session, EndReason.FAILED))

    def _begin(
        self, admitted: Admitted, request: Request, reply: Reply
    ) -> list[asyncio.Task[None]]:
        """Start the work that an admitted request asks for."""
        session, work = admitted.session, []
        if admitted.replaced is not None:
            self._spawn(self._end(admitted.replaced, EndReason.REPLACED))
        if admitted.start is not None:
            final = request.control is None and not request.end
            work.append(session.start(self._open(session, admitted, reply, final)))
        if request.control is not None:
            send = self._sender(session, reply, request.end)
            work.append(session.start(self.pipeline.run_chunk(session, request.control, send)))
        return work

    async def _open(self, session: Session, admitted: Admitted, reply: Reply, final: bool) -> None:
        start, replaced = admitted.start, admitted.replaced
        assert start is not None
        if replaced is not None:
            await self._end(replaced, EndReason.REPLACED)
            if replaced.releases and len(self.table) > self.table.limit:
                raise SessionLimit("a worker does not let go of the session that had this id")
        await self._build(session, start)
        session.last_activity = self.clock()
        await reply.send(responses.ready(session, self.info), last=final)
        session.opened.set()
        self.observer.add(metrics.OPENED)

    async def _build(self, session: Session, start: Start) -> None:
        picture = await self._load_picture(start.image)
        height, width = picture.shape[:2]
        try:
            session.geometry = Geometry.fit(height, width, session.options.max_area)
        except InputError as error:
            raise BadRequest(str(error)) from None
        await self.pipeline.open_session(session, Opening(picture, start.prompt))

    def _sender(
        self, session: Session, reply: Reply, ends: bool
    ) -> Callable[[FramePart], Coroutine[Any, Any, None]]:
        async def send(part: FramePart) -> None:
            session.last_activity = self.clock()
            responses.measure_part(self.observer, part)
            await reply.send(responses.frames(part), last=part.last and not ends)

        return send

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
        except Exception as error:
            if not isinstance(error, WorldError):
                log.exception("a request of session %s met an internal error", session.epoch)
            # A commit may fail after the last frames: the next request is told that.
            if not reply.finished:
                if isinstance(error, WorldError):
                    self.observer.add(metrics.REJECTIONS, 1, error.code)
                refusal = responses.refusal(error, chunk_of(request))
                await reply.send(refusal, last=not request.end)
        finally:
            del self._replies[reply]
        if request.end:
            await self._close(session, reply)

    async def _refuse(self, request: Request, reply: Reply, error: WorldError) -> None:
        """Answer a request that was not admitted; its END still ends the session it names."""
        self.observer.add(metrics.REJECTIONS, 1, error.code)
        refusal = responses.refusal(error, chunk_of(request))
        ends = request.end and not request.starts
        session = self.table.find(request.session_id) if ends else None
        if session is not None and session.owned_by(request.token) and not session.closing:
            await reply.send(refusal, last=False)
            await self._close(session, reply)
        else:
            await reply.send(refusal, last=True)

    async def _close(self, session: Session, reply: Reply) -> None:
        await self._end(session, EndReason.END)
        await reply.send(responses.closed(session, self.clock()), last=True)

    async def _end(self, session: Session, reason: EndReason) -> None:
        """End `session` and forget it, once; everybody who asks waits for the same end."""
        first = session.ending is None
        await end_session(self.pipeline.stages, session, reason)
        if first:
            self.table.forget(session)
            for release in session.releases:
                release.add_done_callback(lambda _: self._leave(session))
            assert session.end_reason is not None
            self.observer.add(metrics.CLOSED, 1, session.end_reason.value)
            self._leave(session)
            line = {"epoch": session.epoch} | responses.summary(session, self.clock())
            level = logging.WARNING if session.end_reason is EndReason.FAILED else logging.INFO
            log.log(level, "session ended %s", json.dumps(line))

    def _leave(self, session: Session) -> None:
        """Make room for another session, once every worker has let go of this one."""
        if not session.releases:
            self.table.remove(session)
            responses.set_gauges(self.observer, self.table.live)

    async def _sweep(self) -> None:
        """End sessions whose client is gone or silent, and report what is there."""
        while True:
            before = self.clock()
            await asyncio.sleep(SWEEP_SECONDS)
            late = self.clock() - before - SWEEP_SECONDS
            try:
                responses.set_gauges(self.observer, self.table.live)
                self._end_cancelled()
                self._end_idle(late)
            except Exception:  # nobody would look after sessions any more
                log.exception("looking after sessions met an internal error")

    def _end_cancelled(self) -> None:
        for reply, session in list(self._replies.items()):
            if reply.cancelled() and session.ending is None:
                self._spawn(self._end(session, EndReason.CANCELLED))

    def _end_idle(self, late: float) -> None:
        deadline = self.clock() - self.settings.session_idle_seconds
        for session in list(self.table.live):
            session.last_activity += late  # this process stood still: that is nobody's silence
            if not session.busy and session.ending is None and session.last_activity < deadline:
                self._spawn(self._end(session, EndReason.IDLE))

    async def shut_down(self, grace_seconds: float) -> None:
        """Refuse what is new, give running chunks the grace time, then end every session."""
        self.stopping = True
        deadline = self.clock() + grace_seconds
        while self.clock() < deadline and any(
            session.busy and session.end_reason is None for session in self.table.live
        ):
            await asyncio.sleep(0.02)
        ends = [self._end(session, EndReason.SHUTDOWN) for session in list(self.table.live)]
        await asyncio.gather(*ends)
        for watcher in self._watchers:
            watcher.cancel()
        while others := [task for task in (*self._watchers, *self._tasks) if not task.done()]:
            await asyncio.wait(others)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
