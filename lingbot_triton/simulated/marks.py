"""Numbers written into the first pixels of simulated frames, so that a client can check them."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

MARK_BYTES = 12
"""Session fingerprint, chunk index and frame index, each a little-endian uint32."""


@dataclass(frozen=True)
class Mark:
    """What one simulated frame says of itself."""

    fingerprint: int
    """`fingerprint(seed)` of the session that made the frame."""
    chunk_index: int
    frame_index: int
    """Session-wide index of the frame."""


def fingerprint(seed: int) -> int:
    """24 bits of a session's seed: few enough to pass through a float32 latent unchanged."""
    return zlib.crc32(str(seed).encode()) & 0xFFFFFF


def write_mark(frame: np.ndarray[Any, np.dtype[np.uint8]], mark: Mark) -> None:
    """Write `mark` into the first pixels of a frame [H, W, 3], in place."""
    numbers = np.array([mark.fingerprint, mark.chunk_index, mark.frame_index], "<u4")
    frame.reshape(-1)[:MARK_BYTES] = numbers.view(np.uint8)


def read_mark(frame: np.ndarray[Any, np.dtype[np.uint8]]) -> Mark:
    """The mark of a simulated frame [H, W, 3]."""
    data = frame.reshape(-1)[:MARK_BYTES].tobytes()
    return Mark(*(int(number) for number in np.frombuffer(data, "<u4")))
