"""What a session gives back: parts of chunks as they arrive, and whole chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingbot_client.errors import Cancelled, ProtocolError
from lingbot_client.exchange import Call
from lingbot_client.protocol import Response


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
    """What the server says: keys applied, milliseconds since acceptance, and more."""
    sent_at: float
    received_at: float
    """When the control was sent and this part arrived, in seconds of `time.monotonic`."""

    @property
    def last(self) -> bool:
        """Whether the chunk is complete with this part."""
        return self.part + 1 >= self.parts

    @classmethod
    def from_response(cls, response: Response, sent_at: float) -> FramePart:
        """Read a FRAMES response; raises the exception that any other one stands for."""
        response.raise_for_status()
        try:
            part, parts = int(response.info["part"]), int(response.info["parts"])
        except (KeyError, TypeError, ValueError):
            raise ProtocolError(f"a {response.status} answer is not a part of a chunk") from None
        return cls(
            response.chunk_index,
            part,
            parts,
            response.frame_index,
            response.frames,
            response.info,
            sent_at,
            response.received_at,
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
        """Join the parts of one chunk, which are in order."""
        first = parts[0]
        frames = first.frames if len(parts) == 1 else np.concatenate([p.frames for p in parts])
        return cls(first.chunk_index, first.frame_index, frames, tuple(parts))


def milliseconds(part: FramePart, name: str) -> float | None:
    """A timing from a part's info, None where the server does not give it."""
    value = part.info.get("ms", {}).get(name)
    return None if value is None else float(value)


class PartReader:
    """Reads the parts of the chunk that one control makes."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.parts: list[FramePart] = []
        """What was read so far."""

    async def next_part(self) -> FramePart | None:
        """The next part, None after the last; raises the error that came instead."""
        response = await anext(self._call, None)
        if response is not None:
            self.parts.append(FramePart.from_response(response, self._call.sent_at))
            return self.parts[-1]
        if not self.parts or not self.parts[-1].last:
            raise Cancelled("the server dropped the control before its chunk was complete")
        return None
