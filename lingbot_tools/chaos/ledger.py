"""What one opening of a session sent and what came back, and whether that was promised."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from lingbot_client import protocol
from lingbot_client.errors import Cancelled, Disconnected, NoSession, WorldError
from lingbot_client.protocol import Response

from lingbot_triton.simulated.marks import Mark, read_mark

FRAMES, READY, CLOSED = protocol.FRAMES_PART, protocol.READY, protocol.CLOSED

DROPPED, NO_SEQUENCE, LEFT = "DROPPED", "NO_SEQUENCE", "LEFT"
"""What stands for a response where the orchestrator sent none: the scheduler dropped the request,
it refused the request since it knows no such sequence, or the client itself did not wait."""

UNANSWERED = "UNANSWERED"
FAILURES = ("SESSION_FAILED", "STAGE_FAILED", "STAGE_TIMEOUT", "NO_SESSION", NO_SEQUENCE)
"""Statuses that a session may get, from some request on, after a worker died."""


@dataclass(frozen=True)
class Part:
    """Frames that came together; the pixels are gone, their marks are kept."""

    chunk_index: int
    frame_index: int
    part: int
    parts: int
    marks: tuple[Mark, ...]
    received_at: float

    @classmethod
    def of(cls, response: Response) -> Part:
        info = response.info
        marks = tuple(read_mark(frame) for frame in response.frames)
        return cls(
            response.chunk_index,
            response.frame_index,
            int(info["part"]),
            int(info["parts"]),
            marks,
            response.received_at,
        )


@dataclass(eq=False)
class Sent:
    """One request and everything that came back."""

    what: str
    index: int | None = None
    """Chunk index of its control, None without a control."""
    good: bool = True
    """Whether its inputs can be understood."""
    start: bool = False
    end: bool = False
    foreign: bool = False
    """Whether it carried another token than the session's."""
    unanswered_before: int = 0
    """Controls of the session that had no response yet when this request left."""
    at: float = field(default_factory=time.monotonic)
    statuses: list[str] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    message: str = ""
    summary: dict[str, Any] = field(default_factory=dict)
    done: bool = False

    @property
    def waiting(self) -> bool:
        """Whether its control has no response yet."""
        return not any(status != READY for status in self.statuses)

    def take(self, response: Response) -> None:
        self.statuses.append(response.status)
        if response.status == FRAMES:
            self.parts.append(Part.of(response))
        elif response.status == CLOSED:
            self.summary = response.info
        elif response.status != READY:
            self.message = response.message

    def take_error(self, error: WorldError) -> None:
        kinds = ((NoSession, NO_SEQUENCE), (Cancelled, DROPPED), (Disconnected, LEFT))
        names = (name for kind, name in kinds if isinstance(error, kind))
        self.statuses.append(next(names, type(error).__name__))
        self.message = str(error)

    def __str__(self) -> str:
        flags = "".join(f" {name}" for name in ("start", "end", "foreign") if getattr(self, name))
        index = "" if self.index is None else f" chunk {self.index}"
        statuses = " ".join(self.statuses) + ("" if self.done else f" {UNANSWERED}")
        return f"{self.what}{index}{flags} -> {statuses.strip()} {self.message}".rstrip()


@dataclass
class Ledger:
    """One opening: its requests in the order in which they were sent, on one stream."""

    session_id: int | str
    fingerprint: int
    last_chunk: int | None
    window: int
    sent: list[Sent] = field(default_factory=list)
    tolerated: set[str] = field(default_factory=set)
    """Statuses that this opening may meet, since its player or a worker's death caused them."""

    def next_index(self) -> int:
        """The index of the next control, if all that are unanswered are admitted."""
        cursor = 0
        for sent in self.sent:
            if sent.index is None or not sent.good or sent.foreign:
                continue
            if sent.parts or (sent.waiting and sent.index == cursor):
                cursor = sent.index + 1
        return cursor

    @property
    def refused(self) -> bool:
        """Whether the opening got a response, and it was not READY."""
        return self.sent[0].done and READY not in self.sent[0].statuses

    def longest_silence(self) -> float:
        """Seconds before a request in which nothing was admitted; a refusal keeps nothing alive."""
        active = [self.sent[0].at, *(part.received_at for part in self._arrived())]
        return max(sent.at - max(at for at in active if at <= sent.at) for sent in self.sent)

    def unanswered(self) -> int:
        controls = (s for s in self.sent if s.index is not None and s.good and not s.foreign)
        return sum(sent.waiting for sent in controls)

    def history(self) -> list[str]:
        """One line for each request, in the order of sending."""
        first = self.sent[0].at if self.sent else 0.0
        return [f"{1000 * (sent.at - first):8.1f} ms  {sent}" for sent in self.sent]

    def violations(self) -> Iterator[str]:
        """Every broken promise, as a sentence."""
        yield from self._responses()
        yield from self._frames()

    def _responses(self) -> Iterator[str]:
        """Replays the cursor over the requests, in the order of their arrival at the server."""
        cursor, failed, closed = 0, False, False
        for sent in self.sent:
            if not sent.done:
                yield f"no final response: {sent}"
                continue
            expected = self._expected(sent, cursor, closed)
            head = next((status for status in sent.statuses if status != READY), READY)
            tolerated = self.tolerated & set(sent.statuses) - set(expected)
            failed = failed or bool(tolerated)
            if sent.parts and ((failed and not tolerated) or sent.foreign or not sent.good):
                yield f"frames where there can be none: {sent}"
            if not (head in expected or tolerated or (failed and head != FRAMES)):
                yield f"the response should be {' or '.join(expected)}: {sent}"
            if head == FRAMES and not tolerated:
                yield from self._whole(sent)
                cursor += 1
            if not (tolerated or failed):
                yield from self._closing(sent, cursor, closed)
            closed = closed or CLOSED in sent.statuses

    def _expected(self, sent: Sent, cursor: int, closed: bool) -> tuple[str, ...]:
        """What may come first, READY aside."""
        if sent.foreign:
            return ("NO_SESSION", "BAD_REQUEST") if sent.start else ("NO_SESSION",)
        if closed or (self.refused and sent is not self.sent[0]):
            return ("NO_SESSION", NO_SEQUENCE, *(("BAD_REQUEST",) if sent.start else ()))
        if not sent.good:
            opening = ("OUT_OF_ORDER", "SESSION_LIMIT") if sent.start else ()
            return ("BAD_REQUEST", *opening)
        if sent.start and sent is self.sent[0]:
            opened = FRAMES if sent.index is not None else CLOSED if sent.end else READY
            return (opened, "SESSION_LIMIT")
        if sent.index is None:
            return (CLOSED,)
        if sent.index != cursor:
            return ("DUPLICATE" if sent.index < cursor else "OUT_OF_ORDER",)
        if self.last_chunk is not None and cursor > self.last_chunk:
            return ("LENGTH_LIMIT",)
        full = sent.unanswered_before >= self.window
        return (FRAMES, "WINDOW_FULL") if full else (FRAMES,)

    def _whole(self, sent: Sent) -> Iterator[str]:
        parts = [part.part for part in sent.parts]
        count = sum(len(part.marks) for part in sent.parts)
        frames = 9 if sent.index == 0 else 12
        if parts != list(range(sent.parts[0].parts)) or count != frames:
            yield f"chunk {sent.index} came as parts {parts} with {count} frames: {sent}"

    def _closing(self, sent: Sent, chunks: int, closed: bool) -> Iterator[str]:
        """END is answered with CLOSED, last, and with the numbers that are seen here."""
        if not sent.end or sent.foreign or closed or self.refused:
            return
        if sent.statuses[-1] != CLOSED:
            yield f"END was not answered with CLOSED: {sent}"
            return
        frames = sum(len(part.marks) for part in self._arrived())
        summary = (sent.summary["reason"], sent.summary["chunks"], sent.summary["frames"])
        if summary[0] == "failed" and self.tolerated.issuperset(FAILURES):
            return
        if summary != ("end", chunks, frames):
            yield f"the summary says {summary}, here came {(chunks, frames)}: {sent}"

    def _arrived(self) -> Sequence[Part]:
        parts = [part for sent in self.sent for part in sent.parts]
        return sorted(parts, key=lambda part: part.received_at)

    def _frames(self) -> Iterator[str]:
        """Nothing lost, repeated, reordered or from another session, by the marks in the frames."""
        frame = 0
        for sent in self.sent:
            for part in sent.parts:
                if part.chunk_index != sent.index:
                    yield f"a part of chunk {part.chunk_index} answered {sent}"
        for part in self._arrived():
            if part.frame_index != frame:
                yield f"frame {part.frame_index} came where {frame} is next"
            for mark in part.marks:
                expected = Mark(self.fingerprint, part.chunk_index, frame)
                if mark != expected:
                    yield f"a frame is marked {mark}; it should be {expected}"
                frame += 1
