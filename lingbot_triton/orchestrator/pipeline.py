"""The path of one control: condition, denoise, frames; beside it the commit and the next condition.

The stages are behind an interface, and tensors are opaque: nothing here knows torch or Triton.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

from lingbot_triton import metrics, protocol, stage
from lingbot_triton.errors import WorldError
from lingbot_triton.orchestrator.cursors import Condition, Latent
from lingbot_triton.orchestrator.events import Control, Event
from lingbot_triton.orchestrator.interfaces import Clock, Parameters, Stages, Tensors
from lingbot_triton.orchestrator.outbox import Respond
from lingbot_triton.orchestrator.requests import FramePart
from lingbot_triton.orchestrator.session import Session
from lingbot_triton.orchestrator.timed_calls import TimedCalls
from lingbot_triton.stage import (
    CLOSE,
    CONDITION_STAGE,
    DECODE_STAGE,
    DENOISE_STAGE,
    PROMPT_STAGE,
)
from lingbot_triton.world.geometry import video_frames

log = logging.getLogger(__name__)

STAGE_TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True)
class Opening:
    """What a session starts from: an RGB picture [h, w, 3] uint8 and a prompt."""

    picture: Any
    prompt: str


class Pipeline:
    """Runs sessions over stages; it holds nothing of a session itself."""

    def __init__(
        self,
        stages: Stages,
        clock: Clock,
        observer: metrics.Observer | None = None,
        timeout: float = STAGE_TIMEOUT_SECONDS,
    ) -> None:
        self.stages = stages
        self.timeout = timeout
        self.clock = clock
        self.observer = observer or metrics.NoObserver()
        self.calls = TimedCalls(stages, clock, self.observer, timeout)

    async def open_session(self, session: Session, opening: Opening) -> None:
        """Build the session's state in every stage; its prefetch starts before this returns."""

        async def condition() -> None:
            await self.calls.open(session, CONDITION_STAGE, {stage.PICTURE.name: opening.picture})
            self.refill(session)

        async def denoise() -> None:
            prompt = {protocol.PROMPT.name: np.array([opening.prompt.encode()], dtype=object)}
            context = await self.calls.call(session, PROMPT_STAGE, "encode", 0, prompt)
            outputs = await self.calls.open(session, DENOISE_STAGE, context)
            session.worker_info = json.loads(outputs[stage.ABOUT.name][0])

        async def decode() -> None:
            await self.calls.open(session, DECODE_STAGE, {})

        parts = [session.start(part()) for part in (condition, denoise, decode)]
        await asyncio.gather(*parts)

    async def run(self, session: Session, event: Event, respond: Respond) -> None:
        """Apply an event when its turn comes; returns when all that it asks for is done.

        The denoise lane is first come, first served, so events are applied in the order in which
        they were admitted, each at the boundary between two chunks.
        """
        async with session.denoise_lane:
            session.check()
            await session.opened.wait()
            try:
                rest = await event.apply(self, session, respond)
            except Exception as error:
                session.fail(error)  # while the lane is held: the next event must not begin
                raise
        if rest is not None:
            await rest

    async def play_chunk(self, session: Session, control: Control) -> asyncio.Task[None]:
        """Make the control's chunk; the task that is returned sends its frames.

        The denoise lane is held until the commit is done, the decode lane until the last part is
        sent. Both are first come, first served, and the decode lane is entered from within the
        denoise lane, so frames leave in order, and at most one latent waits for a decoder.
        """
        entered = self.clock()
        condition = await self._take_condition(session)
        session.controls.start()
        denoising = self.clock()
        latent = await self._denoise(session, control, condition)
        denoised = self.clock()
        self._note_waiting(session, control, (entered, denoising, denoised), latent)
        commit = self._start_commit(session, control.chunk_index)
        session.conditions.release()
        self.refill(session)
        if session.options.commit_inline:
            await commit
        await session.decode_lane.acquire()
        times = {
            "queue": _ms(entered - control.accepted_at),
            "condition_wait": _ms(denoising - entered),
            "denoise": _ms(denoised - denoising),
        }
        frames = session.start(self._send_frames(session, control, latent, times))
        await commit
        return frames

    def refill(self, session: Session) -> None:
        """Request conditions until the window is full, one after another, in the background."""
        running = session.prefetch is not None and not session.prefetch.done()
        if session.conditions.may_request and not running:
            session.prefetch = session.start(self._prefetch(session))

    async def _prefetch(self, session: Session) -> None:
        while session.conditions.may_request:
            await self._encode(session)

    async def _encode(self, session: Session) -> None:
        index, future = session.conditions.request()
        session.counters.condition_calls += 1
        outputs = await self.calls.call(
            session, CONDITION_STAGE, "step", index, parameters={"chunk_index": index}
        )
        tensor = outputs[stage.CONDITION.name]
        condition = Condition(tensor, bool(outputs[stage.STEADY.name][0]), tensor.nbytes)
        session.conditions.arrived(future, condition)
        if condition.steady:
            session.start(self._release_encoder(session))

    async def _release_encoder(self, session: Session) -> None:
        """It is not called any more, and Triton would forget its sequence in the long run."""

        async def close() -> None:
            await self.stages.call(session, CONDITION_STAGE, CLOSE, {}, {})
            session.held_stages.discard(CONDITION_STAGE.name)

        try:
            await session.calls.run(CONDITION_STAGE.name, close(), self.timeout)
        except WorldError as error:  # then it is tried again at the session's end
            log.warning("closing condition of session %s: %s", session.correlation_id, error)

    async def _take_condition(self, session: Session) -> Condition:
        if session.conditions.empty:  # nothing is encoded ahead at depth 0
            await self._encode(session)
        if session.conditions.serves_steady:
            session.counters.steady_chunks += 1
            self.observer.add(metrics.STEADY)
        return await session.conditions.take()

    async def _denoise(self, session: Session, control: Control, condition: Condition) -> Latent:
        inputs = {stage.CONDITION.name: condition.tensor}
        if control.poses is not None:
            inputs[stage.CAMERA_POSES.name] = control.poses
        index = control.chunk_index
        parameters: Parameters = {"chunk_index": index, "keys": control.keys}
        outputs = await self.calls.call(session, DENOISE_STAGE, "step", index, inputs, parameters)
        steps = outputs[stage.STEP_MS.name]
        return Latent(outputs[stage.LATENT.name], tuple(float(ms) / 1000 for ms in steps))

    def _note_waiting(
        self,
        session: Session,
        control: Control,
        moments: tuple[float, float, float],
        latent: Latent,
    ) -> None:
        """Measure what only a chunk's own coroutine knows: its wait and its denoising steps."""
        entered, denoising, denoised = moments
        self.observer.add(metrics.CONDITION_WAIT, denoising - entered)
        index, trace = control.chunk_index, session.trace
        trace.add("queue", index, control.accepted_at, entered)
        trace.add("condition wait", index, entered, denoising)
        end = denoised
        for seconds in reversed(latent.step_seconds):
            trace.add("denoise step", index, end - seconds, end)
            end -= seconds

    def _start_commit(self, session: Session, chunk_index: int) -> asyncio.Task[Tensors]:
        parameters = {"chunk_index": chunk_index}
        call = self.calls.call(session, DENOISE_STAGE, "commit", chunk_index, parameters=parameters)
        return session.start(call)

    async def _send_frames(
        self, session: Session, control: Control, latent: Latent, times: dict[str, float]
    ) -> None:
        """Decode a chunk part by part; a part is sent while the next one is decoded."""
        sending: asyncio.Task[None] | None = None
        chunk, step = session.chunk_latent_frames, session.options.decode_frames
        firsts = range(0, chunk, step)
        try:
            for part, first in enumerate(firsts):
                started = self.clock()
                count = min(step, chunk - first)
                inputs = {stage.LATENT.name: latent.tensor[:, first : first + count]}
                outputs = await self.calls.call(
                    session, DECODE_STAGE, "step", control.chunk_index, inputs
                )
                now = self.clock()
                milliseconds = times | {
                    "decode": _ms(now - started),
                    "since_acceptance": _ms(now - control.accepted_at),
                }
                frame_index = session.counters.frames_sent
                frames = FramePart(
                    control.chunk_index,
                    frame_index,
                    outputs[protocol.FRAMES.name],
                    video_frames(count, first=frame_index == 0),
                    part,
                    len(firsts),
                    control.keys if control.poses is None else None,
                    milliseconds,
                )
                session.counters.frames_sent += frames.count
                if sending is not None:
                    await sending
                if frames.last:
                    session.counters.chunks_done += 1
                session.outbox.put(frames)
                sending = session.start(self.calls.send(session, control.chunk_index))
            if sending is not None:
                await sending
        finally:
            session.decode_lane.release()


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
