"""What one opening of a session sent and what came back, and whether that was promised."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from lingbot_client.errors import Cancelled, Disconnected, SequenceEnded, WorldError
from lingbot_client.protocol import CLOSED, READY, Response
from lingbot_client.protocol import FRAMES_PART as FRAMES

from lingbot_triton.simulated.marks import Mark, read_mark

DROPPED, NO_SEQUENCE, LEFT = Cancelled.__name__, SequenceEnded.__name__, Disconnected.__name__
"""What stands for a response where the orchestrator sent none: the scheduler dropped the request,
it refused the request since it knows no such sequence, or the client itself did not wait."""

FAILURES = ("SESSION_FAILED", "STAGE_FAILED", "STAGE_TIMEOUT", "NO_SESSION", NO_SEQUENCE)
"""Statuses that a session may get, from some request on, after a worker died."""


class Violation(Exception):
    """A broken promise: where it was met, what it is, and what led to it, a line each."""

    def __str__(self) -> str:
        return "\n  ".join(self.args)


@dataclass(eq=False)
class Sent:
    """One request and everything that came back."""

    what: str
    index: int | None = None
    """Chunk index of its control, None without a control."""
    good: bool = True
    """Whether its inputs can be understood."""
    foreign: bool = False
    """Whether it carried another token than the session's."""
    start: bool = False
    end: bool = False
    unanswered_before: int = 0
    """Controls of the session that had no response yet when this request left."""
    at: float = field(default_factory=time.monotonic)
    statuses: list[str] = field(default_factory=list)
    parts: list[Response] = field(default_factory=list)
    message: str = ""
    info: dict[str, Any] = field(default_factory=dict)
    """Of the last response."""
    done: bool = False

    @property
    def waiting(self) -> bool:
        """Whether its control has no response yet."""
        return set(self.statuses) <= {READY}

    def is_whole(self) -> bool:
        """Whether all parts of a chunk came, in order."""
        parts = [(part.info["part"], part.info["parts"]) for part in self.parts]
        frames = sum(len(part.frames) for part in self.parts)
        whole = parts == [(number, len(parts)) for number in range(len(parts))]
        return whole and frames == (12 if self.index else 9)

    async def read(self, call: AsyncIterable[Response]) -> None:
        """Take in everything that comes back."""
        try:
            async for response in call:
                self.statuses.append(response.status)
                self.message, self.info = response.message, response.info
                if response.status == FRAMES:
                    self.parts.append(response)
        except WorldError as error:
            self.fail(error)
        self.done = True

    def fail(self, error: WorldError) -> None:
        """Note that no response follows."""
        self.statuses.append(type(error).__name__)
        self.message, self.done = str(error), True

    def __str__(self) -> str:
        flags = "".join(f" {name}" for name in ("start", "end", "foreign") if getattr(self, name))
        index = "" if self.index is None else f" chunk {self.index}"
        statuses = " ".join([*self.statuses, *([] if self.done else ["UNANSWERED"])])
        return f"{self.what}{index}{flags} -> {statuses} {self.message}".rstrip()


@dataclass
class Ledger:
    """One opening: its requests in the order in which they were sent, on one stream."""

    fingerprint: int
    last_chunk: int | None
    window: int
    sent: list[Sent] = field(default_factory=list)
    tolerated: set[str] = field(default_factory=set)
    """Statuses that this opening may meet, since its player or a worker's death caused them."""

    def _controls(self) -> list[tuple[int, Sent]]:
        good = (sent for sent in self.sent if sent.good and not sent.foreign)
        return [(sent.index, sent) for sent in good if sent.index is not None]

    def next_index(self) -> int:
        """The index of the next control, if all that are unanswered are admitted."""
        cursor = 0
        for index, sent in self._controls():
            if sent.parts or (sent.waiting and index == cursor):
                cursor = index + 1
        return cursor

    def unanswered(self) -> int:
        return sum(sent.waiting for _, sent in self._controls())

    @property
    def refused(self) -> bool:
        """Whether the opening got a response, and it was not READY."""
        return self.sent[0].done and READY not in self.sent[0].statuses

    def longest_silence(self) -> float:
        """Seconds before a request in which nothing was admitted; a refusal keeps nothing alive."""
        active = [self.sent[0].at, *(part.received_at for part in self._arrived())]
        return max(sent.at - max(at for at in active if at <= sent.at) for sent in self.sent)

    def history(self) -> list[str]:
        """One line for each request, in the order of sending."""
        return [f"{1000 * (sent.at - self.sent[0].at):8.1f} ms  {sent}" for sent in self.sent]

    def _arrived(self) -> list[Response]:
        parts = (part for sent in self.sent for part in sent.parts)
        return sorted(parts, key=lambda part: part.received_at)

    def violations(self) -> Iterator[str]:
        """Every broken promise, as a sentence.

        Replays the cursor over the requests, in the order of their arrival at the server.
        """
        cursor, failed, closed = 0, False, False
        frames = sum(len(part.frames) for part in self._arrived())
        for sent in self.sent:
            if not sent.done:
                yield f"no final response: {sent}"
                continue
            expected = self._expected(sent, cursor, closed)
            head = next((status for status in sent.statuses if status != READY), READY)
            tolerated = self.tolerated & set(sent.statuses) - set(expected)
            failed = failed or bool(tolerated)
            admitted = head == FRAMES and not tolerated
            cursor += admitted
            ends = sent.end and not (sent.foreign or closed or self.refused or failed)
            impossible = sent.foreign or not sent.good or (failed and not tolerated)
            unexpected = not (head in expected or tolerated or (failed and head != FRAMES))
            chunks = [part.chunk_index for part in sent.parts]
            numbers = [part.info["part"] for part in sent.parts]
            summary = tuple(sent.info.get(name) for name in ("reason", "chunks", "frames"))
            excused = summary[0] == "failed" and self.tolerated.issuperset(FAILURES)
            rules = (
                (sent.parts and impossible, "frames where there can be none"),
                (unexpected, f"the response should be {' or '.join(expected)}"),
                (admitted and not sent.is_whole(), f"came as parts {numbers}"),
                (set(chunks) - {sent.index}, f"parts are of chunks {chunks}"),
                (ends and sent.statuses[-1] != CLOSED, "END was not answered with CLOSED"),
                (
                    ends and not excused and summary != ("end", cursor, frames),
                    f"the summary says {summary}, here came {(cursor, frames)}",
                ),
            )
            yield from (f"{sentence}: {sent}" for broken, sentence in rules if broken)
            closed = closed or CLOSED in sent.statuses
        yield from self._frames()

    def _expected(self, sent: Sent, cursor: int, closed: bool) -> tuple[str, ...]:
        """What may come first, READY aside: the first rule that applies says it."""
        first = sent is self.sent[0]
        bad_start = ("BAD_REQUEST",) if sent.start else ()
        opened = READY if not sent.end else CLOSED
        index = cursor if sent.index is None else sent.index
        too_long = self.last_chunk is not None and cursor > self.last_chunk
        rules: tuple[tuple[bool, tuple[str, ...]], ...] = (
            (sent.foreign, ("NO_SESSION", *bad_start)),
            (closed or (self.refused and not first), ("NO_SESSION", NO_SEQUENCE, *bad_start)),
            (not sent.good and sent.start, ("BAD_REQUEST", "OUT_OF_ORDER", "SESSION_LIMIT")),
            (not sent.good, ("BAD_REQUEST",)),
            (first and sent.start, (opened if sent.index is None else FRAMES, "SESSION_LIMIT")),
            (sent.index is None, (CLOSED,)),
            (index < cursor, ("DUPLICATE",)),
            (index > cursor, ("OUT_OF_ORDER",)),
            (too_long, ("LENGTH_LIMIT",)),
            (sent.unanswered_before >= self.window, (FRAMES, "WINDOW_FULL")),
        )
        return next((statuses for applies, statuses in rules if applies), (FRAMES,))

    def _frames(self) -> Iterator[str]:
        """Nothing lost, repeated, reordered or from another session, by the marks in the frames."""
        frame = 0
        for part in self._arrived():
            if part.frame_index != frame:
                yield f"frame {part.frame_index} came where {frame} is next"
            for mark in map(read_mark, part.frames):
                expected = Mark(self.fingerprint, part.chunk_index, frame)
                if mark != expected:
                    yield f"a frame is marked {mark}; it should be {expected}"
                frame += 1
