"""Conditions that sessions with the same picture share: they depend on nothing else."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lingbot_triton.stages import Arrays
from lingbot_triton.world.geometry import Geometry


def condition_key(picture: NDArray[np.uint8], geometry: Geometry, chunk_frames: int) -> bytes:
    """The same for equal pictures [h, w, 3], fitted to equal frames, in chunks of equal length."""
    digest = hashlib.sha256(np.ascontiguousarray(picture).data)
    digest.update(repr((picture.shape, geometry.height, geometry.width, chunk_frames)).encode())
    return digest.digest()


@dataclass
class _Entry:
    chunks: list[Arrays] = field(default_factory=list)
    """A chunk's outputs, from the first chunk on without a gap."""
    bytes: int = 0


class ConditionCache:
    """Least recently used pictures are forgotten first, so that `bytes` stays within `limit`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()

    def get(self, key: bytes, chunk: int) -> Arrays | None:
        """The outputs of chunk number `chunk`, None where they are not held."""
        entry = self._entries.get(key)
        if entry is None or chunk >= len(entry.chunks):
            return None
        self._entries.move_to_end(key)
        return entry.chunks[chunk]

    def add(self, key: bytes, chunk: int, outputs: Arrays) -> None:
        """Hold a chunk's outputs, unless one before it is lacking or it is there already."""
        size = sum(array.nbytes for array in outputs.values())
        entry = self._entries.get(key) or _Entry()
        if chunk != len(entry.chunks) or entry.bytes + size > self.limit:
            return
        for array in outputs.values():
            array.flags.writeable = False
        entry.chunks.append(outputs)
        entry.bytes += size
        self.bytes += size
        self._entries[key] = entry
        self._entries.move_to_end(key)
        while self.bytes > self.limit:
            _, oldest = self._entries.popitem(last=False)
            self.bytes -= oldest.bytes
