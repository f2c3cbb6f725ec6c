"""Calls to stages, each within its time, on the session's books, measured and traced."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from lingbot_triton import metrics
from lingbot_triton.errors import StageDead
from lingbot_triton.orchestrator import responses
from lingbot_triton.orchestrator.interfaces import Clock, Parameters, Stages, Tensors
from lingbot_triton.orchestrator.session import Session
from lingbot_triton.stage import Stage

Result = TypeVar("Result")

OPENING_ATTEMPTS = 4


class TimedCalls:
    """The stages as the pipeline calls them; it holds nothing of a session itself."""

    def __init__(
        self, stages: Stages, clock: Clock, observer: metrics.Observer, timeout: float
    ) -> None:
        self._stages = stages
        self._clock = clock
        self._observer = observer
        self._timeout = timeout

    async def call(
        self,
        session: Session,
        stage: Stage,
        operation: str,
        chunk_index: int,
        inputs: Tensors | None = None,
        parameters: Parameters | None = None,
    ) -> Tensors:
        """Call a stage; the outputs of the operation. Raises StageFailed or StageTimeout."""
        record = stage.operation(operation)
        call = self._stages.call(session, stage, record, inputs or {}, parameters or {})
        return await self._run(session, stage.name, record.label, chunk_index, call, self._timeout)

    async def open(self, session: Session, stage: Stage, inputs: Tensors) -> Tensors:
        """Build the session's state at a stage, on a worker that lives."""
        assert session.geometry is not None
        parameters: Parameters = {
            "height": session.geometry.height,
            "width": session.geometry.width,
            "options": session.options.to_json(),
            "chunk_latent_frames": session.chunk_latent_frames,
        }
        # Counted as held from the attempt on: a call that was answered late may have succeeded.
        session.held_stages.add(stage.name)
        label = stage.operation("open").label
        call = self._open(session, stage, inputs, parameters)
        return await self._run(session, stage.name, label, 0, call, self._timeout)

    async def _open(
        self, session: Session, stage: Stage, inputs: Tensors, parameters: Parameters
    ) -> Tensors:
        operation = stage.operation("open")
        attempt = 0
        while True:
            try:
                return await self._stages.call(session, stage, operation, inputs, parameters)
            except StageDead as error:
                attempt += 1
                if attempt == OPENING_ATTEMPTS or not error.others_live:
                    raise
                # The slot of the first id stays at the dead worker; another id gets another slot.
                other = f"{session.correlation_id}-{attempt}"
                session.stage_correlation_ids[stage.name] = other

    async def send(self, session: Session, chunk_index: int) -> None:
        """Deliver the oldest part in the session's outbox, however long the client takes."""

        async def deliver() -> None:
            session.last_activity = self._clock()
            responses.measure_part(self._observer, session.outbox.oldest)
            await session.outbox.deliver()

        await self._run(session, metrics.SEND, metrics.SEND, chunk_index, deliver(), None)

    async def _run(
        self,
        session: Session,
        stage: str,
        label: str,
        chunk_index: int,
        call: Awaitable[Result],
        timeout: float | None,
    ) -> Result:
        """Await a call, which goes on when this is cancelled, and note its span."""
        started = self._clock()
        try:
            return await session.calls.run(stage, call, timeout)
        finally:
            ended = self._clock()
            self._observer.add(metrics.STAGE, ended - started, label)
            session.trace.add(label, chunk_index, started, ended)
