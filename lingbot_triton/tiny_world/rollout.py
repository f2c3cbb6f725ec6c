"""The network's own films, chunk after chunk, for whole batches."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lingbot_triton.options import CHUNK_LATENT_FRAMES
from lingbot_triton.tiny_world.batches import GRID, Batch
from lingbot_triton.tiny_world.forward import (
    Pair,
    Past,
    Prompts,
    forward,
    read_controls,
    read_prompts,
    segment_tokens,
    turns,
    unsegment_tokens,
)
from lingbot_triton.tiny_world.layout import Layout
from lingbot_triton.world.dit import WorldTransformer
from lingbot_triton.world.schedule import COMMIT_TIMESTEP, Schedule

_FRAME_TOKENS = GRID[1] * GRID[2]


@dataclass(frozen=True)
class Rollout:
    latents: torch.Tensor
    """What each chunk became, [b, 16, 3n, h, w]."""
    guesses: torch.Tensor
    """The clean latent as seen after each step, [steps, b, 16, 3n, h, w]."""


def roll_out(
    network: WorldTransformer, batch: Batch, schedule: Schedule, generator: torch.Generator
) -> Rollout:
    """Play the chunks of the batch with four steps and a commit, as the service does.

    Chunks that are not learnt are as they truly are.
    """
    prompts = read_prompts(network, batch.contexts)
    camera = read_controls(network, batch.control)
    latents: list[torch.Tensor] = []
    guesses: list[torch.Tensor] = []
    past: Past | None = None
    for index in range(len(batch.layout.chunks)):
        first = index * CHUNK_LATENT_FRAMES
        condition = batch.condition[:, :, first : first + CHUNK_LATENT_FRAMES]
        chunk = _Chunk(
            network,
            condition,
            [(scale[:, index : index + 1], shift[:, index : index + 1]) for scale, shift in camera],
            prompts,
            turns(network, [batch.layout.first_frames[index]], GRID),
            _in_view(past, batch.layout) if past is not None else None,
        )
        if batch.layout.learnt[index]:
            steps = chunk.denoise(schedule, generator)
        else:
            true = batch.clean[:, :, first : first + CHUNK_LATENT_FRAMES]
            steps = [true] * len(schedule.timesteps)
        latents.append(steps[-1])
        guesses.append(torch.stack(steps))
        kept = chunk.run(steps[-1], COMMIT_TIMESTEP)[1]
        past = kept if past is None else past.followed_by(kept)
    return Rollout(torch.cat(latents, dim=2), torch.cat(guesses, dim=3))


def _in_view(past: Past, layout: Layout) -> Past:
    """What the cache of a session holds when its next chunk begins."""
    if layout.window is None:
        return past
    held = past.blocks[0][0].shape[2] // _FRAME_TOKENS
    room = layout.window - CHUNK_LATENT_FRAMES
    if held <= room:
        return past
    sink = layout.sink * _FRAME_TOKENS
    kept = Past([(keys[:, :, :sink], values[:, :, :sink]) for keys, values in past.blocks])
    return kept.followed_by(past.newest((room - layout.sink) * _FRAME_TOKENS))


@dataclass(frozen=True)
class _Chunk:
    network: WorldTransformer
    condition: torch.Tensor
    camera: list[Pair]
    prompts: Prompts
    turned: torch.Tensor
    past: Past | None

    def run(self, video: torch.Tensor, timestep: int) -> tuple[torch.Tensor, Past]:
        """Flow of the chunk's sample [b, 16, 3, h, w], and its keys and values."""
        tokens = segment_tokens(torch.cat((video, self.condition), dim=1), CHUNK_LATENT_FRAMES)
        timesteps = torch.full((len(video), 1), timestep)
        patches, kept = forward(
            self.network,
            tokens,
            timesteps,
            self.camera,
            self.prompts,
            self.turned,
            past=self.past,
        )
        return unsegment_tokens(patches, GRID), kept

    def denoise(self, schedule: Schedule, generator: torch.Generator) -> list[torch.Tensor]:
        """The clean latent as each step sees it."""
        shape = (len(self.condition), 16, *self.condition.shape[2:])
        sample = torch.randn(shape, generator=generator)
        guesses = []
        levels = zip(schedule.timesteps, schedule.clean_sigmas, strict=True)
        for step, (timestep, sigma) in enumerate(levels, start=1):
            guess = sample - sigma * self.run(sample, timestep)[0]
            guesses.append(guess)
            if step < len(schedule.timesteps):
                level = schedule.renoise_sigmas[step]
                noise = torch.randn(shape, generator=generator)
                sample = (1 - level) * guess + level * noise
        return guesses
