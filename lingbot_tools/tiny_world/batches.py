"""From films on disk to what the transformer is given in one training pass."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from lingbot_tools.tiny_world.films import Films, frames_of, shuffled
from lingbot_tools.tiny_world.forward import segment_tokens
from lingbot_tools.tiny_world.layout import Layout
from lingbot_tools.tiny_world.renderer import HEIGHT, WIDTH
from lingbot_tools.tiny_world.scene import Scene
from lingbot_tools.tiny_world.walk import follow
from lingbot_triton.options import SessionOptions
from lingbot_triton.world.camera import pixel_intrinsics, relative_poses
from lingbot_triton.world.control import control, rays
from lingbot_triton.world.family import WORLD_FAST
from lingbot_triton.world.geometry import PATCH, Geometry
from lingbot_triton.world.text import TextEncoder

CHUNK = WORLD_FAST.chunk_latent_frames

GEOMETRY = Geometry(HEIGHT, WIDTH)
GRID = (CHUNK, HEIGHT // 8 // PATCH, WIDTH // 8 // PATCH)

_NO_PROMPT = 0.1
"""How often a film comes without its prompt."""
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Batch:
    """Films [b, ...] of the chunks that `layout` names."""

    layout: Layout
    clean: torch.Tensor
    """[b, 16, 3n, h, w]"""
    condition: torch.Tensor
    """[b, 20, 3n, h, w]"""
    control: torch.Tensor
    """Tokens [b, n, t, control width]."""
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
        chosen = list(shuffled(len(self.films.scenes), self.seed, step, self.batch))
        frames = frames_of(layout.chunks)
        prompts = [
            "" if random.random() < _NO_PROMPT else _prompt(self.films.scenes[index])
            for index in chosen
        ]
        return Batch(
            layout,
            self.films.latents[chosen][:, :, frames].float(),
            torch.stack([self.films.condition(index, layout.chunks) for index in chosen]),
            segment_tokens(
                torch.stack([self._control(index, layout.chunks) for index in chosen]),
                CHUNK,
            ),
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
