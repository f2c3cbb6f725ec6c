"""What a session gives back: parts of chunks as they arrive, and whole chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingbot_client.errors import ProtocolError
from lingbot_client.protocol import Answer


@dataclass(frozen=True)
class FramePart:
    """Frames of one chunk that arrived together."""

    chunk_index: int
    part: int
    """Which part of the chunk this is, counted from 0."""
    parts: int
    """How many parts the chunk has."""
    frame_index: int
    """Session-wide index of the first frame here."""
    frames: NDArray[np.uint8]
    """RGB [n, H, W, 3]."""
    info: dict[str, Any]
    """All that the server tells: keys applied, milliseconds since acceptance, and more."""
    sent_at: float
    received_at: float
    """When the control was sent and this part arrived, in seconds of `time.monotonic`."""

    @property
    def last(self) -> bool:
        """Whether the chunk is complete with this part."""
        return self.part + 1 >= self.parts

    @classmethod
    def from_answer(cls, answer: Answer, sent_at: float) -> FramePart:
        """Read a FRAMES answer; raises the exception of any other one."""
        answer.raise_for_status()
        try:
            part, parts = int(answer.info["part"]), int(answer.info["parts"])
        except (KeyError, TypeError, ValueError):
            raise ProtocolError(f"a {answer.status} answer is not a part of a chunk") from None
        return cls(
            answer.chunk_index,
            part,
            parts,
            answer.frame_index,
            answer.frames,
            answer.info,
            sent_at,
            answer.received_at,
        )


@dataclass(frozen=True)
class Chunk:
    """One whole chunk: what a single control made."""

    chunk_index: int
    frame_index: int
    frames: NDArray[np.uint8]
    """RGB [n, H, W, 3]."""
    parts: tuple[FramePart, ...]

    @property
    def keys(self) -> str | None:
        """The keys the server applied; None for a chunk made from poses."""
        keys = self.parts[0].info.get("keys")
        return None if keys is None else "".join(keys)

    @property
    def first_frame_ms(self) -> float | None:
        """Server time from the control's acceptance to its first frame."""
        return milliseconds(self.parts[0], "since_acceptance")

    @property
    def last_frame_ms(self) -> float | None:
        """Server time from the control's acceptance to its last frame."""
        return milliseconds(self.parts[-1], "since_acceptance")

    @property
    def condition_wait_ms(self) -> float | None:
        """Server time for which the control waited for its condition."""
        return milliseconds(self.parts[0], "condition_wait")

    @classmethod
    def join(cls, parts: Sequence[FramePart]) -> Chunk:
        """Join the parts of one chunk, given in order."""
        first = parts[0]
        frames = first.frames if len(parts) == 1 else np.concatenate([p.frames for p in parts])
        return cls(first.chunk_index, first.frame_index, frames, tuple(parts))


def milliseconds(part: FramePart, name: str) -> float | None:
    """A timing from a part's info, None where the server does not give it."""
    value = part.info.get("ms", {}).get(name)
    return None if value is None else float(value)
