"""Events of a session: what a client asks for, applied at the boundary between two chunks."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from lingbot_triton.orchestrator.outbox import Respond
    from lingbot_triton.orchestrator.pipeline import Pipeline
    from lingbot_triton.orchestrator.session import Session


@dataclass(frozen=True)
class Event:
    """One event, for the chunk `chunk_index`.

    It is admitted in the order in which requests come, without waiting. It is applied while it
    holds the session's denoise lane: after one chunk's commit, before the next one is denoised.
    """

    chunk_index: int
    accepted_at: float
    """Monotonic seconds; every latency is measured from here."""

    def admit(self, session: Session) -> None:
        """Take the event into the session's books, or raise WorldError and change nothing."""
        raise NotImplementedError

    async def apply(
        self, pipeline: Pipeline, session: Session, respond: Respond
    ) -> asyncio.Task[None] | None:
        """Carry the event out; returns the work that goes on beside the next event, if any.

        `respond` is the way back to the client; the event's last response is said to be that.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Control(Event):
    """What the person does during one chunk: keys held, or a camera pose per latent frame."""

    keys: str = ""
    poses: np.ndarray[Any, Any] | None = None
    """Camera-to-world matrices [latent frames, 4, 4], OpenCV axes, or None where keys steer."""

    def admit(self, session: Session) -> None:
        """Raises Duplicate, OutOfOrder, LengthLimit or WindowFull."""
        session.controls.admit(self.chunk_index)

    async def apply(
        self, pipeline: Pipeline, session: Session, respond: Respond
    ) -> asyncio.Task[None]:
        """Make the chunk; the task that is returned sends its frames."""
        session.outbox.attach(self.chunk_index, respond)
        return await pipeline.play_chunk(session, self)
