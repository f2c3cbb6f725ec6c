"""What the service is asked and how it responds, between Triton's tensors and the sessions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lingbot_triton.errors import WorldError
from lingbot_triton.options import SessionOptions

if TYPE_CHECKING:
    from lingbot_triton.orchestrator.events import Event

SessionId = int | str

READY = "READY"
FRAMES = "FRAMES"
CLOSED = "CLOSED"


@dataclass(frozen=True)
class Start:
    """What a START carries beside an event."""

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
    event: Event | None = None
    error: WorldError | None = None
    starts: bool = False
    """Whether START was flagged, also when what it carries could not be read."""

    @property
    def chunk_index(self) -> int:
        """The chunk that an error response to the request is about, or -1."""
        return self.event.chunk_index if self.event else -1


@dataclass(frozen=True)
class FramePart:
    """Some frames of a chunk, decoded together, with what a client wants to know of them."""

    chunk_index: int
    frame_index: int
    """Session-wide index of the first frame."""
    frames: Any
    """uint8 [n, H, W, 3]; opaque here."""
    count: int
    """n, the number of frames."""
    part: int
    parts: int
    keys: str | None
    milliseconds: dict[str, float]

    @property
    def last(self) -> bool:
        return self.part == self.parts - 1

    def response(self) -> Response:
        """The response that carries these frames."""
        info = {"part": self.part, "parts": self.parts, "keys": self.keys, "ms": self.milliseconds}
        return Response(FRAMES, "", self.chunk_index, self.frame_index, self.frames, info)


@dataclass(frozen=True)
class Response:
    """One response, before it becomes tensors. `frames` is opaque here; None means none."""

    status: str
    message: str = ""
    chunk_index: int = -1
    frame_index: int = -1
    frames: Any = None
    info: dict[str, Any] = field(default_factory=dict)
