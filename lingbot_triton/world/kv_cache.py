"""Keys and values of the frames a session looks back on.

A full cache has room for every frame of the session. A rolling one keeps its first `sink_frames`
for good and the newest others; since keys carry their absolute position, and attention does not
mind the order of its keys, the oldest frame's slots are simply overwritten: nothing is moved.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Slots:
    """Where one chunk's tokens go; all numbers are tokens and known on the host."""

    segments: tuple[tuple[int, int, int], ...]
    """(first cache slot, first chunk token, tokens), usually one, two where the ring wraps."""
    visible: int
    """Slots 0 to `visible` hold keys that the chunk attends to, its own among them."""
    first_frame: int
    """Absolute position of the chunk's first latent frame."""


class KVCache:
    """Cache of all layers; `keys[layer]` and `values[layer]` are [slots, heads, head_dim]."""

    def __init__(
        self,
        *,
        layers: int,
        frames: int,
        tokens_per_frame: int,
        heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        rolling: bool = False,
        sink_frames: int = 0,
    ) -> None:
        shape = (frames * tokens_per_frame, heads, head_dim)
        self.keys = [torch.empty(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.values = [torch.empty(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.frames = frames
        self.tokens_per_frame = tokens_per_frame
        self.rolling = rolling
        self.sink_frames = sink_frames
        self.seen_frames = 0
        """Latent frames that were given slots since the session began."""

    def _slot(self, frame: int) -> int:
        if frame < self.frames:
            return frame
        return self.sink_frames + (frame - self.sink_frames) % (self.frames - self.sink_frames)

    def advance(self, frames: int) -> Slots:
        """Give the next `frames` latent frames their slots, evicting the oldest if need be.

        Raises RuntimeError where a full cache has no room left.
        """
        first = self.seen_frames
        if first + frames > self.frames and not self.rolling:
            raise RuntimeError(
                f"the cache holds {self.frames} latent frames; frames {first} to "
                f"{first + frames - 1} do not fit"
            )
        size = self.tokens_per_frame
        segments: list[tuple[int, int, int]] = []
        for offset in range(frames):
            slot, token = self._slot(first + offset) * size, offset * size
            if segments and sum(segments[-1][::2]) == slot:
                start, chunk_start, length = segments[-1]
                segments[-1] = (start, chunk_start, length + size)
            else:
                segments.append((slot, token, size))
        self.seen_frames = first + frames
        return Slots(tuple(segments), min(self.seen_frames, self.frames) * size, first)

    def ordered_keys(self, layer: int) -> torch.Tensor:
        """The keys held now, oldest frame first, [tokens, heads, head_dim]."""
        keys, sink = self.keys[layer], self.sink_frames
        if self.seen_frames <= self.frames:
            return keys[: self.seen_frames * self.tokens_per_frame]
        oldest = (self.seen_frames - sink) % (self.frames - sink)
        ring = keys[sink * self.tokens_per_frame :].roll(-oldest * self.tokens_per_frame, 0)
        return torch.cat((keys[: sink * self.tokens_per_frame], ring))
