"""What a training pass lays side by side: which chunks of a film, where, and who sees whom."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lingbot_triton.world.family import WORLD_FAST

CHUNK = WORLD_FAST.chunk_latent_frames

_GAPS = (0, 6, 12, 24, 48, 75)
"""Latent frames that a sink's distance from the window is stretched by."""
_WINDOWS = (9, 12, 15)


@dataclass(frozen=True)
class Layout:
    """Chunks of a film as a session with or without a KV window would have them."""

    chunks: tuple[int, ...]
    """Their numbers in the film, in order."""
    first_frames: tuple[int, ...]
    """The position of each one's first latent frame in the session."""
    learnt: tuple[bool, ...]
    """Which of them are predicted; the others only are there to look back on."""
    window: int | None = None
    """Latent frames of the KV cache, the chunk's own among them; None keeps all."""
    sink: int = 0

    @classmethod
    def whole(cls, count: int, window: int | None = None, sink: int = 0) -> Layout:
        """A session from its start."""
        first = tuple(CHUNK * chunk for chunk in range(count))
        return cls(tuple(range(count)), first, (True,) * count, window, sink)

    @classmethod
    def sample(cls, random: np.random.Generator, count: int) -> Layout:
        """Half the time a session from its start, else one long after it, with a window."""
        if random.random() < 0.5:
            window = int(random.choice(_WINDOWS)) if random.random() < 0.3 else None
            return cls.whole(count, window, CHUNK if window else 0)
        window = int(random.choice(_WINDOWS))
        start = int(random.integers(1, max(2, count - 3)))
        chunks = tuple(range(start, count))
        gap = int(random.choice(_GAPS))
        sink = CHUNK if random.random() < 0.7 else 0
        first = tuple(CHUNK * chunk + gap for chunk in chunks)
        learnt = (False, *[True] * (len(chunks) - 1))
        if sink:
            chunks, first, learnt = (0, *chunks), (0, *first), (False, *learnt)
        return cls(chunks, first, learnt, window, sink)

    @property
    def clean(self) -> int:
        """Clean segments, which come first: the last chunk is never looked back on."""
        return len(self.chunks) - 1

    def views(self, tokens_per_frame: int) -> list[list[slice]]:
        """The tokens that each segment sees: the clean segments, then all chunks' noisy ones."""
        chunk = CHUNK * tokens_per_frame
        views = []
        for segment in range(self.clean + len(self.chunks)):
            asking = segment if segment < self.clean else segment - self.clean
            before = [
                frame
                for asked in range(asking)
                for frame in range(
                    asked * CHUNK,
                    (asked + 1) * CHUNK,
                )
                if self._sees(asking, asked, frame % CHUNK)
            ]
            spans = [
                slice(first * tokens_per_frame, (last + 1) * tokens_per_frame)
                for first, last in _runs(before)
            ]
            views.append([*spans, slice(segment * chunk, (segment + 1) * chunk)])
        return views

    def _sees(self, asking: int, asked: int, offset: int) -> bool:
        """Whether a chunk finds another one's latent frame in the cache."""
        frame = self.first_frames[asked] + offset
        if self.window is None or frame < self.sink:
            return True
        newest = self.first_frames[asking] + CHUNK
        return frame >= newest - (self.window - self.sink)


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    """First and last of each run of successive numbers."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs
