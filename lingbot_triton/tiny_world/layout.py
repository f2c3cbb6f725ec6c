"""What a training pass lays side by side: which chunks of a film, where, and who sees whom."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from lingbot_triton.options import CHUNK_LATENT_FRAMES

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
        first = tuple(CHUNK_LATENT_FRAMES * chunk for chunk in range(count))
        return cls(tuple(range(count)), first, (True,) * count, window, sink)

    @classmethod
    def sample(cls, random: np.random.Generator, count: int) -> Layout:
        """Half the time a session from its start, else one long after it, with a window."""
        if random.random() < 0.5:
            window = int(random.choice(_WINDOWS)) if random.random() < 0.3 else None
            return cls.whole(count, window, CHUNK_LATENT_FRAMES if window else 0)
        window = int(random.choice(_WINDOWS))
        start = int(random.integers(1, max(2, count - 3)))
        chunks = tuple(range(start, count))
        gap = int(random.choice(_GAPS))
        sink = CHUNK_LATENT_FRAMES if random.random() < 0.7 else 0
        first = tuple(CHUNK_LATENT_FRAMES * chunk + gap for chunk in chunks)
        learnt = (False, *[True] * (len(chunks) - 1))
        if sink:
            chunks, first, learnt = (0, *chunks), (0, *first), (False, *learnt)
        return cls(chunks, first, learnt, window, sink)

    @property
    def clean(self) -> int:
        """Clean segments, which come first: the last chunk is never looked back on."""
        return len(self.chunks) - 1

    def sees(self, asking: int, frame: int) -> bool:
        """Whether the chunk at index `asking` finds latent frame `frame` in the cache."""
        if self.window is None or frame < self.sink:
            return True
        newest = self.first_frames[asking] + CHUNK_LATENT_FRAMES
        return frame >= newest - (self.window - self.sink)

    def mask(self, tokens_per_frame: int) -> torch.Tensor:
        """Bool [s, s] over the tokens of the clean segments, then of all chunks' noisy ones."""
        count = len(self.chunks)
        segments = [(index, True) for index in range(self.clean)]
        segments += [(index, False) for index in range(count)]
        frames = range(CHUNK_LATENT_FRAMES)
        seen = np.zeros((len(segments), len(segments), CHUNK_LATENT_FRAMES), dtype=bool)
        for row, (asking, asking_clean) in enumerate(segments):
            for column, (asked, asked_clean) in enumerate(segments):
                if row == column:
                    seen[row, column] = True
                elif asked_clean and (asked < asking or (asking_clean and asked == asking)):
                    first = self.first_frames[asked]
                    seen[row, column] = [self.sees(asking, first + frame) for frame in frames]
        by_frame = torch.from_numpy(seen.reshape(len(segments), -1))
        by_frame = by_frame.repeat_interleave(CHUNK_LATENT_FRAMES, 0)
        return by_frame.repeat_interleave(tokens_per_frame, 0).repeat_interleave(
            tokens_per_frame, 1
        )
