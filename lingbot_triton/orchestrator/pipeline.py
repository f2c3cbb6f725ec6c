"""The way of one control: condition, denoise, frames; beside it the commit and the next condition.

The stages are behind an interface, and tensors are opaque: nothing here knows torch or Triton.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from lingbot_triton import metrics
from lingbot_triton.errors import WorldError
from lingbot_triton.orchestrator.cursors import Condition, Control, Latent
from lingbot_triton.orchestrator.requests import FramePart
from lingbot_triton.orchestrator.session import Session
from lingbot_triton.world.family import WORLD_FAST
from lingbot_triton.world.geometry import video_frames

CHUNK = WORLD_FAST.chunk_latent_frames

log = logging.getLogger(__name__)
Clock = Callable[[], float]
Result = TypeVar("Result")

STAGE_TIMEOUT_SECONDS = 120.0
SEND = "send"


@dataclass(frozen=True)
class Opening:
    """What a session starts from: an RGB picture [h, w, 3] uint8 and a prompt."""

    picture: Any
    prompt: str


class Stages(Protocol):
    """The four stages as a session sees them; every call raises StageFailed where it fails."""

    async def open_condition(self, session: Session, picture: Any) -> None: ...

    async def encode_prompt(self, session: Session, prompt: str) -> Any: ...

    async def open_denoise(self, session: Session, context: Any) -> None: ...

    async def open_decode(self, session: Session) -> None: ...

    async def condition(self, session: Session, chunk_index: int) -> Condition: ...

    async def denoise(self, session: Session, control: Control, condition: Condition) -> Latent: ...

    async def commit(self, session: Session, chunk_index: int) -> None: ...

    async def decode(self, session: Session, latent: Latent, first: int, count: int) -> Any: ...

    async def close(self, session: Session, stage: str) -> None: ...


SendPart = Callable[[FramePart], Awaitable[None]]


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

    async def open_session(self, session: Session, opening: Opening) -> None:
        """Build the session's state in every stage; its prefetch starts before this returns."""

        async def condition() -> None:
            await self._open(session, "condition", self.stages.open_condition, opening.picture)
            self.refill(session)

        async def denoise() -> None:
            embed = self.stages.encode_prompt
            context = await self._call(session, "prompt", 0, embed, opening.prompt)
            await self._open(session, "denoise", self.stages.open_denoise, context)

        async def decode() -> None:
            await self._open(session, "decode", self.stages.open_decode)

        parts = [session.start(part()) for part in (condition, denoise, decode)]
        await asyncio.gather(*parts)

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
        session.condition_calls += 1
        condition = await self._call(session, "condition", index, self.stages.condition, index)
        session.conditions.arrived(future, condition)
        if condition.steady:
            session.start(self._drop_encoder(session))

    async def _drop_encoder(self, session: Session) -> None:
        """Nothing is asked of it any more, and Triton would forget its sequence in the long run."""

        async def close() -> None:
            await self.stages.close(session, "condition")
            session.stages_open.discard("condition")

        try:
            await session.call("condition", close(), self.timeout)
        except WorldError as error:  # then it is tried again at the session's end
            log.warning("closing condition of session %s: %s", session.epoch, error)

    async def run_chunk(self, session: Session, control: Control, send: SendPart) -> None:
        """One control through the house; returns when its frames are sent.

        The denoise lane is held until the commit is done, the decode lane until the last part is
        sent. Both are first come, first served, and the decode lane is entered from within the
        denoise lane, so frames leave in order, and at most one latent waits for a decoder.
        """
        async with session.denoise_lane:
            session.check()
            await session.opened.wait()
            entered = self.clock()
            condition = await self._take_condition(session)
            session.controls.begin()
            denoising = self.clock()
            latent = await self._call(
                session, "denoise", control.chunk_index, self.stages.denoise, control, condition
            )
            denoised = self.clock()
            self._note_waiting(session, control, entered, denoising, latent, denoised)
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
            frames = session.start(self._send_frames(session, control, latent, times, send))
            await commit
        await frames

    async def _take_condition(self, session: Session) -> Condition:
        if session.conditions.empty:  # nothing is encoded ahead at depth 0
            await self._encode(session)
        if session.conditions.serves_steady:
            session.steady_chunks += 1
            self.observer.add(metrics.STEADY)
        return await session.conditions.take()

    def _note_waiting(
        self,
        session: Session,
        control: Control,
        entered: float,
        denoising: float,
        latent: Latent,
        denoised: float,
    ) -> None:
        """Measure what only a chunk's own coroutine knows: its wait and its denoising steps."""
        self.observer.add(metrics.CONDITION_WAIT, denoising - entered)
        if session.options.trace:
            index = control.chunk_index
            session.spans.append(("queue", index, control.accepted_at, entered))
            session.spans.append(("condition wait", index, entered, denoising))
            end = denoised
            for seconds in reversed(latent.step_seconds):
                session.spans.append(("denoise step", index, end - seconds, end))
                end -= seconds

    def _start_commit(self, session: Session, chunk_index: int) -> asyncio.Task[None]:
        call = self._call(session, "commit", chunk_index, self.stages.commit, chunk_index)
        return session.start(call)

    async def _send_frames(
        self,
        session: Session,
        control: Control,
        latent: Latent,
        times: dict[str, float],
        send: SendPart,
    ) -> None:
        """Decode a chunk part by part; a part is sent while the next one is decoded."""
        sending: asyncio.Task[None] | None = None
        try:
            step = session.options.decode_frames
            firsts = range(0, CHUNK, step)
            for part, first in enumerate(firsts):
                count = min(step, CHUNK - first)
                started = self.clock()
                frames = await self._call(
                    session, "decode", control.chunk_index, self.stages.decode, latent, first, count
                )
                now = self.clock()
                elapsed = {
                    "decode": _ms(now - started),
                    "since_acceptance": _ms(now - control.accepted_at),
                }
                keys = control.keys if control.poses is None else None
                frame_index = session.frames_sent
                length = video_frames(count, first=frame_index == 0)
                session.frames_sent += length
                message = FramePart(
                    control.chunk_index,
                    frame_index,
                    frames,
                    length,
                    part,
                    len(firsts),
                    keys,
                    times | elapsed,
                )
                if sending is not None:
                    await sending
                if message.last:
                    session.chunks_done += 1
                sending = session.start(
                    self._call(session, SEND, control.chunk_index, _send, send, message)
                )
            if sending is not None:
                await sending
        finally:
            session.decode_lane.release()

    async def _open(
        self, session: Session, stage: str, opener: Callable[..., Awaitable[None]], *arguments: Any
    ) -> None:
        # Counted as open from the attempt on: a call that was answered late may have succeeded.
        session.stages_open.add(stage)
        await self._call(session, f"open {stage}", 0, opener, *arguments)

    async def _call(
        self,
        session: Session,
        name: str,
        chunk_index: int,
        method: Callable[..., Awaitable[Result]],
        *arguments: Any,
    ) -> Result:
        """Await `method(session, *arguments)`, unharmed by cancellation, and note its span."""
        started = self.clock()
        try:
            timeout = None if name == SEND else self.timeout
            return await session.call(stage_of(name), method(session, *arguments), timeout)
        finally:
            ended = self.clock()
            self.observer.add(metrics.STAGE, ended - started, name)
            if session.options.trace:
                session.spans.append((name, chunk_index, started, ended))


async def _send(session: Session, send: SendPart, message: FramePart) -> None:
    await send(message)


def stage_of(call: str) -> str:
    """The stage that works on a call of this name."""
    return "denoise" if call == "commit" else call.removeprefix("open ")


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
