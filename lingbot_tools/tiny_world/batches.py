"""What one training pass takes: which chunks of films lie side by side, and which see which."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import torch

from lingbot_tools.tiny_world.films import CHUNK

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
        positions = [first + frame for first in self.first_frames for frame in range(CHUNK)]
        views = []
        for segment, asking in enumerate((*range(self.clean), *range(len(self.chunks)))):
            before = positions[: asking * CHUNK]
            sink = oldest = 0
            if self.window is not None:
                sink = bisect_left(before, self.sink)
                newest = self.first_frames[asking] + CHUNK
                oldest = bisect_left(before, newest - (self.window - self.sink), lo=sink)
            own = segment * CHUNK
            spans = ((0, sink), (oldest, len(before)), (own, own + CHUNK))
            views.append(
                [
                    slice(first * tokens_per_frame, end * tokens_per_frame)
                    for first, end in spans
                    if first < end
                ]
            )
        return views


@dataclass(frozen=True)
class Batch:
    """Films [b, ...] of the chunks that `layout` names."""

    layout: Layout
    clean: torch.Tensor
    """[b, 16, 3n, h, w]"""
    condition: torch.Tensor
    """[b, 20, 3n, h, w]"""
    control: torch.Tensor
    """[b, 384, 3n, h, w]"""
    contexts: list[torch.Tensor]
