"""What each request means: opening, controlling and closing sessions; each gets a response.

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
from lingbot_triton.orchestrator.admission import Admission, Admitted
from lingbot_triton.orchestrator.ending import end_session
from lingbot_triton.orchestrator.interfaces import Clock, ResponseSink, Workers
from lingbot_triton.orchestrator.outbox import Respond
from lingbot_triton.orchestrator.pipeline import Opening, Pipeline
from lingbot_triton.orchestrator.recovery import Recovery
from lingbot_triton.orchestrator.requests import Request, Response, Start
from lingbot_triton.orchestrator.session import Session
from lingbot_triton.orchestrator.table import SessionTable
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
        chunk_latent_frames: int,
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
        self._sinks: dict[ResponseSink, Session] = {}
        self._watchers: list[asyncio.Task[None]] = []
        self.recovery: Recovery | None = None
        if workers is not None:
            stages = pipeline.stages
            self.recovery = Recovery(stages, workers, table, self.observer, self._spawn)
        self._admission = Admission(
            settings, table, chunk_latent_frames, clock, self._on_failure, self._check_stages
        )

    def accept(self, request: Request, sink: ResponseSink) -> None:
        """Admit or refuse `request`, without awaiting, and answer it in the background."""
        self.watch()
        try:
            if self.stopping:
                raise ShuttingDown("the server is shutting down")
            admitted = self._admission.admit(request)
        except WorldError as error:
            self._spawn(self._refuse(request, sink, error))
        else:
            work = self._begin(admitted, request, sink)
            self._spawn(self._serve(admitted.session, work, request, sink))

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

    def _on_failure(self, session: Session) -> None:
        if isinstance(session.end.failure, StageDead) and self.recovery is not None:
            self.recovery.on_worker_death(session.end.failure.stage)
        self._spawn(self._end(session, EndReason.FAILED))

    def _begin(
        self, admitted: Admitted, request: Request, sink: ResponseSink
    ) -> list[asyncio.Task[None]]:
        """Start the work that an admitted request asks for."""
        session, work = admitted.session, []
        if admitted.replaced is not None:
            self._spawn(self._end(admitted.replaced, EndReason.REPLACED))
        if admitted.start is not None:
            final = request.event is None and not request.end
            work.append(session.start(self._open(session, admitted, sink, final)))
        if (event := request.event) is not None:
            respond = self._responder(sink, request.end)
            work.append(session.start(self.pipeline.run(session, event, respond)))
        return work

    async def _open(
        self, session: Session, admitted: Admitted, sink: ResponseSink, final: bool
    ) -> None:
        start, replaced = admitted.start, admitted.replaced
        assert start is not None
        if replaced is not None:
            await self._end(replaced, EndReason.REPLACED)
            if replaced.end.releases and len(self.table) > self.table.limit:
                raise SessionLimit("a worker does not let go of the session that had this id")
        await self._build(session, start)
        session.last_activity = self.clock()
        await sink.send(responses.ready(session, self.info), final=final)
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

    def _responder(self, sink: ResponseSink, ends: bool) -> Respond:
        """The way back to the client for an event; a request with END has the summary to come."""

        async def respond(response: Response, last: bool) -> None:
            await sink.send(response, final=last and not ends)

        return respond

    async def _serve(
        self, session: Session, work: list[asyncio.Task[None]], request: Request, sink: ResponseSink
    ) -> None:
        self._sinks[sink] = session
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
                log.exception(
                    "a request of session %s met an internal error", session.correlation_id
                )
            # A commit may fail after the last frames: then the next request gets the error.
            if not sink.finished:
                if isinstance(error, WorldError):
                    self.observer.add(metrics.REJECTIONS, 1, error.code)
                response = responses.error_response(error, request.chunk_index)
                await sink.send(response, final=not request.end)
        finally:
            del self._sinks[sink]
        if request.end:
            await self._close(session, sink)

    async def _refuse(self, request: Request, sink: ResponseSink, error: WorldError) -> None:
        """Respond to a request that was not admitted; its END still ends the session it names."""
        self.observer.add(metrics.REJECTIONS, 1, error.code)
        response = responses.error_response(error, request.chunk_index)
        ends = request.end and not request.starts
        session = self.table.find(request.session_id) if ends else None
        if session is not None and session.owned_by(request.token) and not session.end.closing:
            await sink.send(response, final=False)
            await self._close(session, sink)
        else:
            await sink.send(response, final=True)

    async def _close(self, session: Session, sink: ResponseSink) -> None:
        await self._end(session, EndReason.END)
        await sink.send(responses.closed(session, self.clock()), final=True)

    async def _end(self, session: Session, reason: EndReason) -> None:
        """End `session` and forget it, once; every caller waits for the same end."""
        first = session.end.task is None
        await end_session(self.pipeline.stages, session, reason)
        if first:
            self.table.forget(session)
            for release in session.end.releases:
                release.add_done_callback(lambda _: self._make_room(session))
            assert session.end.reason is not None
            self.observer.add(metrics.CLOSED, 1, session.end.reason.value)
            self._make_room(session)
            line = {"correlation_id": session.correlation_id} | responses.summary(
                session, self.clock()
            )
            level = logging.WARNING if session.end.reason is EndReason.FAILED else logging.INFO
            log.log(level, "session ended %s", json.dumps(line))

    def _make_room(self, session: Session) -> None:
        """Make room for another session, once every worker has released this one."""
        if not session.end.releases:
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
            except Exception:  # without the sweep, lost sessions would stay for ever
                log.exception("looking after sessions met an internal error")

    def _end_cancelled(self) -> None:
        for sink, session in list(self._sinks.items()):
            if sink.cancelled() and session.end.task is None:
                self._spawn(self._end(session, EndReason.CANCELLED))

    def _end_idle(self, late: float) -> None:
        deadline = self.clock() - self.settings.session_idle_seconds
        for session in list(self.table.live):
            session.last_activity += late  # this process stood still: that is no client's silence
            if not session.busy and session.end.task is None and session.last_activity < deadline:
                self._spawn(self._end(session, EndReason.IDLE))

    async def shut_down(self, grace_seconds: float) -> None:
        """Refuse what is new, give running chunks the grace time, then end every session."""
        self.stopping = True
        deadline = self.clock() + grace_seconds
        while self.clock() < deadline and any(
            session.busy and session.end.reason is None for session in self.table.live
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
