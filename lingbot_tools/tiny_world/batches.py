"""What the transformer is given in one training pass, drawn from films on disk.

A layout says which chunks of a film lie side by side, where, and which of them see which.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from lingbot_tools.tiny_world.films import CHUNK, Films, frames_of
from lingbot_tools.tiny_world.renderer import HEIGHT, WIDTH
from lingbot_tools.tiny_world.scene import Scene
from lingbot_tools.tiny_world.walk import follow
from lingbot_triton.options import SessionOptions
from lingbot_triton.world.camera import pixel_intrinsics, relative_poses
from lingbot_triton.world.control import control, rays
from lingbot_triton.world.geometry import Geometry
from lingbot_triton.world.text import TextEncoder

GEOMETRY = Geometry(HEIGHT, WIDTH)
_NO_PROMPT = 0.1
"""How often a film comes without its prompt."""
_CPU = torch.device("cpu")
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


class Batches:
    """Draws batches; all that is random follows from seed and step."""

    def __init__(self, films: Films, text_root: Path, batch: int, seed: int) -> None:
        self.films = films
        self.batch = batch
        self.seed = seed
        self.options = SessionOptions()
        self.directions = rays(pixel_intrinsics(None, None, GEOMETRY), GEOMETRY, _CPU)
        self.contexts = _contexts(films, text_root)

    def draw(self, step: int, layout: Layout, random: np.random.Generator) -> Batch:
        chosen = shuffled(len(self.films.scenes), self.seed, step, self.batch)
        frames = frames_of(layout.chunks)
        prompts = [
            "" if random.random() < _NO_PROMPT else _prompt(self.films.scenes[index])
            for index in chosen
        ]
        return Batch(
            layout,
            self.films.latents[chosen][:, :, frames].float(),
            torch.stack([self.films.condition(index, layout.chunks) for index in chosen]),
            torch.stack([self._control(index, layout.chunks) for index in chosen]),
            [self.contexts[prompt] for prompt in prompts],
        )

    def _control(self, index: int, chunks: tuple[int, ...]) -> torch.Tensor:
        """[384, 3n, h, w], each chunk's normalised by itself as the service does it."""
        poses = follow(self.films.keys[index], self.options).latent
        relative = []
        for chunk in chunks:
            first = chunk * CHUNK
            before = poses[first - 1] if chunk else None
            part = poses[first : first + CHUNK]
            relative.append(relative_poses(part, before, self.options.translation_scale))
        return control("cam", np.concatenate(relative), self.directions)


def _prompt(scene: int) -> str:
    return Scene.sample(scene).prompt


@torch.inference_mode()
def _contexts(films: Films, text_root: Path) -> dict[str, torch.Tensor]:
    """The embedding of every prompt, and of none."""
    encoder = TextEncoder.load(text_root, _CPU, torch.float32)
    prompts = {"", *(_prompt(scene) for scene in films.scenes)}
    # Cloned out of inference mode, whose tensors autograd refuses.
    return {prompt: torch.tensor(encoder.encode(prompt).numpy()) for prompt in sorted(prompts)}


def shuffled(count: int, seed: int, step: int, batch: int) -> list[int]:
    """The films of step number `step`: all of them once an epoch, each time in another order."""
    places = [divmod(place, count) for place in range(step * batch, (step + 1) * batch)]
    orders = {
        epoch: np.random.default_rng([seed, epoch, 4]).permutation(count) for epoch, _ in places
    }
    return [int(orders[epoch][offset]) for epoch, offset in places]
