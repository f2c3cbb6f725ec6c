"""What the service is asked and what it answers, between Triton's tensors and the sessions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from lingbot_triton.errors import WorldError
from lingbot_triton.options import SessionOptions
from lingbot_triton.orchestrator.cursors import Control
from lingbot_triton.orchestrator.session import SessionId

READY = "READY"
FRAMES = "FRAMES"
CLOSED = "CLOSED"


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
class FramePart:
    """Some frames of a chunk, decoded together, with what a client wants to know of them."""

    chunk_index: int
    frame_index: int
    frames: Any
    count: int
    """How many frames there are."""
    part: int
    parts: int
    keys: str | None
    milliseconds: dict[str, float]

    @property
    def last(self) -> bool:
        return self.part == self.parts - 1


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

    @property
    def finished(self) -> bool:
        """Whether the final response went."""

    def cancelled(self) -> bool:
        """Whether the client is gone or took the request back."""
