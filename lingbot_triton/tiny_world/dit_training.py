"""Stages 2 and 3: the causal transformer, first on true history, then on its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from lingbot_triton.options import CHUNK_LATENT_FRAMES, PATCH
from lingbot_triton.tiny_world.batches import GRID, Batch, Batches, by_chunk
from lingbot_triton.tiny_world.forward import (
    Prompts,
    forward,
    read_controls,
    read_prompts,
    segment_tokens,
    turns,
    unsegment_tokens,
)
from lingbot_triton.tiny_world.layout import Layout
from lingbot_triton.tiny_world.loop import Losses
from lingbot_triton.tiny_world.rollout import Rollout, roll_out
from lingbot_triton.world.dit import WorldTransformer
from lingbot_triton.world.schedule import Schedule

SHIFT = 10.0
_STEP_ODDS = (0.4, 0.2, 0.2, 0.2)
"""How often each of the four steps is practised: the first one has the most to do."""
_HISTORY_NOISE = 0.15
"""At most so much noise is on the true history, as a session's own is never quite right."""
_REUSED = 2
"""Steps that a rollout is practised on, each with other noise."""

_ROUNDING = 1e-4
"""Keeps an error of nothing from having an endless gradient."""


@dataclass(frozen=True)
class DiTConfig:
    batch: int = 4
    learning_rate: float = 2e-3
    weight_decay: float = 0.01


def optimisers(network: WorldTransformer, config: DiTConfig) -> list[torch.optim.Optimizer]:
    """Muon for the blocks' matrices, AdamW for everything else."""
    matrices: list[torch.nn.Parameter] = []
    others: list[torch.nn.Parameter] = []
    for name, parameter in network.named_parameters():
        inner = name.startswith("blocks.") and parameter.ndim == 2
        (matrices if inner else others).append(parameter)
    return [
        torch.optim.Muon(
            matrices,
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            adjust_lr_fn="match_rms_adamw",
        ),
        torch.optim.AdamW(others, config.learning_rate, (0.9, 0.98), weight_decay=0.0),
    ]


class DiTTrainee:
    """Implements `loop.Trainee`: the clean latent from each of the schedule's four noise levels."""

    name = "dit"

    def __init__(
        self,
        network: WorldTransformer,
        batches: Batches,
        channel_weights: torch.Tensor,
        config: DiTConfig,
        seed: int,
    ) -> None:
        self.network = network
        self.module: torch.nn.Module = network
        self.batches = batches
        self.weights = channel_weights.view(-1, 1, 1, 1)
        self.size = config.batch
        self.seed = seed
        self.optimisers = optimisers(network, config)
        self.schedule = Schedule.shifted(SHIFT)

    def losses(self, step: int) -> Losses:
        random, generator = self._random(step)
        batch = self.draw(step, random)
        amount = torch.rand(len(batch.clean), 1, 1, 1, 1, generator=generator) * _HISTORY_NOISE
        history = batch.clean + amount * torch.randn(batch.clean.shape, generator=generator)
        steps = self._steps(batch, random)
        noise = torch.randn(batch.clean.shape, generator=generator)
        guess = self.guess(batch, history, batch.clean, noise, steps)
        errors = by_chunk(self.weights * (guess - batch.clean).square())
        return _by_step(batch, errors.mean(dim=(1, 3, 4, 5)), steps)

    def draw(self, number: int, random: np.random.Generator) -> Batch:
        layout = Layout.sample(random, self.batches.films.chunks)
        return self.batches.draw(number, self.size, layout, random)

    def _random(self, step: int) -> tuple[np.random.Generator, torch.Generator]:
        random = np.random.default_rng([self.seed, step, 2])
        return random, torch.Generator().manual_seed(int(random.integers(2**62)))

    def _steps(self, batch: Batch, random: np.random.Generator) -> torch.Tensor:
        """One of the four steps for each chunk, int64 [b, n]."""
        shape = len(batch.clean), len(batch.layout.chunks)
        return torch.from_numpy(random.choice(len(_STEP_ODDS), shape, p=_STEP_ODDS))

    def guess(
        self,
        batch: Batch,
        history: torch.Tensor,
        start: torch.Tensor,
        noise: torch.Tensor,
        steps: torch.Tensor,
    ) -> torch.Tensor:
        """The clean latents as each chunk's step of `steps` [b, n] sees them.

        Noisy samples mix `start` and `noise` at the steps' levels; all are [b, 16, 3n, h, w].
        """
        levels = torch.tensor(self.schedule.clean_sigmas)[steps]
        sigma = levels.repeat_interleave(CHUNK_LATENT_FRAMES, 1)[:, None, :, None, None]
        sample = (1 - sigma) * start + sigma * noise
        timesteps = torch.tensor(self.schedule.timesteps)[steps]
        with torch.autocast("cpu", torch.bfloat16):
            flow = self.flow(batch, history, sample, timesteps)
        return sample - sigma * flow

    def flow(
        self, batch: Batch, history: torch.Tensor, sample: torch.Tensor, timesteps: torch.Tensor
    ) -> torch.Tensor:
        """[b, 16, 3n, h, w] at noisy samples, each after the clean `history` before it."""
        network, layout = self.network, batch.layout
        parts = [
            segment_tokens(torch.cat((video, batch.condition), dim=1), CHUNK_LATENT_FRAMES)
            for video in (history, sample)
        ]
        clean = layout.clean
        camera = [
            (torch.cat((scale[:, :clean], scale), 1), torch.cat((shift[:, :clean], shift), 1))
            for scale, shift in read_controls(network, batch.control)
        ]
        patches, _ = forward(
            network,
            torch.cat((parts[0][:, :clean], parts[1]), dim=1),
            torch.cat((timesteps.new_zeros(len(timesteps), clean), timesteps), dim=1),
            camera,
            self.prompts(batch),
            turns(network, [*layout.first_frames[:clean], *layout.first_frames], GRID),
            layout.views(GRID[1] * GRID[2]),
            outputs=len(layout.chunks),
        )
        return unsegment_tokens(patches, GRID)

    def prompts(self, batch: Batch) -> Prompts:
        return read_prompts(self.network, batch.contexts)


class RolloutTrainee(DiTTrainee):
    """Practises on what the network itself makes, so that its errors do not add up."""

    name = "rollout"
    _rolled: tuple[int, Batch, Rollout] | None = None

    def losses(self, step: int) -> Losses:
        random, generator = self._random(step)
        batch, rolled = self._roll_out(step // _REUSED)
        steps = self._steps(batch, random)
        noise = torch.randn(batch.clean.shape, generator=generator)
        guess = self.guess(batch, rolled.latents, _step_before(rolled, steps), noise, steps)
        return _by_step(batch, token_errors(guess, batch.clean, self.weights), steps)

    def _roll_out(self, number: int) -> tuple[Batch, Rollout]:
        """The last ones again where they have that number: they cost more than a step."""
        if self._rolled is None or self._rolled[0] != number:
            random, generator = self._random(number)
            batch = self.draw(number, random)
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                self._rolled = (
                    number,
                    batch,
                    roll_out(self.network, batch, self.schedule, generator),
                )
        return self._rolled[1:]


def token_errors(guess: torch.Tensor, clean: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Mean over a chunk's tokens of each one's root mean square error, [b, n].

    Squared, what nobody can foresee would count for more than all that a picture shows.
    """
    square = by_chunk((weights * (guess - clean).square()).mean(dim=1))
    tokens = functional.avg_pool2d(square.flatten(0, 1), PATCH)
    errors = (tokens + _ROUNDING).sqrt().mean(dim=(1, 2, 3))
    return errors.view(square.shape[:2])


def _step_before(rolled: Rollout, steps: torch.Tensor) -> torch.Tensor:
    """What was clean at each chunk's step before, [b, 16, 3n, h, w]; anything before the first."""
    before = (steps - 1).clamp(min=0)
    rows = torch.arange(len(steps))[:, None]
    columns = torch.arange(steps.shape[1])[None]
    chosen = by_chunk(rolled.guesses)[before, rows, :, columns]  # [b, n, 16, 3, h, w]
    return chosen.transpose(1, 2).flatten(2, 3)


def _by_step(batch: Batch, by_chunk: torch.Tensor, steps: torch.Tensor) -> Losses:
    """Means of losses [b, n] over what is learnt, and over its first and last steps."""
    learnt = torch.tensor(batch.layout.learnt)
    losses = {"total": by_chunk[:, learnt].mean()}
    for index in (0, len(_STEP_ODDS) - 1):
        chosen = (steps == index) & learnt
        if chosen.any():
            losses[f"step {index}"] = by_chunk[chosen].mean().detach()
    return losses
