"""The causal transformer's stage: each chunk from noise, after the true chunks before it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from lingbot_tools.tiny_world.films import CHUNK, Films, frames_of
from lingbot_tools.tiny_world.forward import Batch, Layout, predict_flow
from lingbot_tools.tiny_world.loop import Losses, optimisers
from lingbot_tools.tiny_world.renderer import HEIGHT, WIDTH
from lingbot_tools.tiny_world.scene import Scene, follow
from lingbot_triton.options import SessionOptions
from lingbot_triton.presets import FAST
from lingbot_triton.world.camera import pixel_intrinsics, relative_poses
from lingbot_triton.world.control import control, rays
from lingbot_triton.world.dit import WorldTransformer
from lingbot_triton.world.geometry import Geometry
from lingbot_triton.world.schedule import Schedule
from lingbot_triton.world.text import TextEncoder

_GEOMETRY = Geometry(HEIGHT, WIDTH)
_CPU = torch.device("cpu")
_NO_PROMPT = 0.1
"""How often a film comes without its prompt."""
_SHIFT = 10.0
_STEP_ODDS = (0.4, 0.2, 0.2, 0.2)
"""How often each of the four steps is practised: the first one has the most to do."""
_HISTORY_NOISE = 0.15
"""At most so much noise is on the true history, as a session's own is never quite right."""
_GAPS = (0, 6, 12, 24, 48, 75)
"""Latent frames that a sink's distance from the window is stretched by."""
_WINDOWS = (9, 12, 15)
_LEARNING_RATE, _WEIGHT_DECAY = 2e-3, 0.01


class DiTTrainee:
    """Implements `loop.Trainee`: the clean latent from each of the schedule's four noise levels."""

    name = "dit"

    def __init__(
        self,
        network: WorldTransformer,
        films: Films,
        text_root: Path,
        channel_weights: torch.Tensor,
        batch: int,
        seed: int,
    ) -> None:
        self.module, self.films, self.batch = network, films, batch
        self.directions = rays(pixel_intrinsics(None, None, _GEOMETRY), _GEOMETRY, _CPU)
        self.contexts = _contexts(films, text_root)
        self.weights = channel_weights.view(-1, 1, 1, 1)
        self.seed = seed
        self.optimisers = optimisers(
            network,
            lambda name, parameter: name.startswith("blocks.") and parameter.ndim == 2,
            (_LEARNING_RATE, _WEIGHT_DECAY),
            _LEARNING_RATE,
        )
        self.schedule = Schedule.shifted(_SHIFT, FAST.step_indices)

    def losses(self, step: int) -> Losses:
        """Squared errors of the clean latents as each chunk sees them from one of the levels."""
        random = np.random.default_rng([self.seed, step, 2])
        generator = torch.Generator().manual_seed(int(random.integers(2**62)))
        layout = draw_layout(random, self.films.chunks)
        batch = self._draw(step, layout, random)
        clean = batch.clean
        amount = torch.rand(len(clean), 1, 1, 1, 1, generator=generator) * _HISTORY_NOISE
        history = clean + amount * torch.randn(clean.shape, generator=generator)
        shape = len(clean), len(layout.chunks)
        steps = torch.from_numpy(random.choice(len(_STEP_ODDS), shape, p=_STEP_ODDS))
        levels = torch.tensor(self.schedule.clean_sigmas)[steps]
        sigma = levels.repeat_interleave(CHUNK, 1)[:, None, :, None, None]
        sample = (1 - sigma) * clean + sigma * torch.randn(clean.shape, generator=generator)
        timesteps = torch.tensor(self.schedule.timesteps)[steps]
        with torch.autocast("cpu", torch.bfloat16):
            flow = predict_flow(self.module, batch, history, sample, timesteps)
        errors = self.weights * (sample - sigma * flow - clean).square()
        by_chunk = errors.view(*errors.shape[:2], -1, CHUNK, *errors.shape[3:])
        return by_step(layout, by_chunk.mean(dim=(1, 3, 4, 5)), steps)

    def _draw(self, step: int, layout: Layout, random: np.random.Generator) -> Batch:
        chosen = _shuffled(len(self.films.scenes), self.seed, step, self.batch)
        frames = frames_of(layout.chunks)
        prompts = [
            "" if random.random() < _NO_PROMPT else Scene(self.films.scenes[index]).prompt
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
        poses = follow(self.films.keys[index]).latent
        scale = SessionOptions().translation_scale
        relative = [
            relative_poses(poses[first : first + CHUNK], poses[first - 1] if first else None, scale)
            for first in (chunk * CHUNK for chunk in chunks)
        ]
        return control("cam", np.concatenate(relative), self.directions)


def draw_layout(random: np.random.Generator, count: int) -> Layout:
    """Half the time a session from its start, else one long after it, with a window."""
    if random.random() < 0.5:
        window = int(random.choice(_WINDOWS)) if random.random() < 0.3 else None
        return Layout.whole(count, window, CHUNK if window else 0)
    window = int(random.choice(_WINDOWS))
    start = int(random.integers(1, max(2, count - 3)))
    chunks = tuple(range(start, count))
    gap = int(random.choice(_GAPS))
    sink = CHUNK if random.random() < 0.7 else 0
    first = tuple(CHUNK * chunk + gap for chunk in chunks)
    learnt = (False, *[True] * (len(chunks) - 1))
    if sink:
        chunks, first, learnt = (0, *chunks), (0, *first), (False, *learnt)
    return Layout(chunks, first, learnt, window, sink)


def by_step(layout: Layout, by_chunk: torch.Tensor, steps: torch.Tensor) -> Losses:
    """Means of errors [b, n] over what is learnt, and over its first and last steps.

    `total` is the geometric mean, as a mean over films of their errors in dB is: under the
    arithmetic one dark films, whose errors are small in any case, would hardly count.
    """
    learnt = torch.tensor(layout.learnt)
    losses = {"total": by_chunk[:, learnt].log().mean().exp()}
    for index in (0, len(_STEP_ODDS) - 1):
        chosen = (steps == index) & learnt
        if chosen.any():
            losses[f"step {index}"] = by_chunk[chosen].mean().detach()
    return losses


@torch.inference_mode()
def _contexts(films: Films, text_root: Path) -> dict[str, torch.Tensor]:
    """The embedding of every prompt, and of none."""
    encoder = TextEncoder.load(text_root, _CPU, torch.float32)
    prompts = {"", *(Scene(scene).prompt for scene in films.scenes)}
    # Cloned out of inference mode, whose tensors autograd refuses.
    return {prompt: torch.tensor(encoder.encode(prompt).numpy()) for prompt in sorted(prompts)}


def _shuffled(count: int, seed: int, step: int, batch: int) -> list[int]:
    """The films of step number `step`: all of them once an epoch, each time in another order."""
    places = [divmod(place, count) for place in range(step * batch, (step + 1) * batch)]
    orders = {
        epoch: np.random.default_rng([seed, epoch, 4]).permutation(count) for epoch, _ in places
    }
    return [int(orders[epoch][offset]) for epoch, offset in places]
