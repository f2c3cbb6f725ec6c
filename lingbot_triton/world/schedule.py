"""The denoising steps of a chunk: flow matching with a shifted schedule of 1000 steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

COMMIT_TIMESTEP = 0
"""The timestep at which a clean latent's keys and values are written."""

_TRAINING_STEPS = 1000
_RENOISE_SALT = 0x51A7E5EED


@dataclass(frozen=True)
class Schedule:
    """The steps, four as released; noise levels go from 1 to 0.

    The scheduler finds a step again by its whole-numbered timestep, which neighbours of the
    1000 steps share: to leave noise it takes the first step of that timestep, to add noise the
    second one where there are more. Both differ from the step's own level by up to 0.001.
    """

    timesteps: tuple[int, ...]
    """As the network is told them, 0..999."""
    sigmas: tuple[float, ...]
    """The steps' own noise levels."""
    clean_sigmas: tuple[float, ...]
    """The levels at which the clean latent is computed from the flow."""
    renoise_sigmas: tuple[float, ...]
    """The levels to which noise is added before each step."""

    @classmethod
    def shifted(cls, shift: float, indices: tuple[int, ...]) -> Schedule:
        """The steps with these `indices` of 1000.

        Source: the flow-matching UniPC scheduler at 1000 steps, whose sigmas are float32.
        """
        highest = float(np.float32(1 - 1 / _TRAINING_STEPS))
        even = np.linspace(highest, 0, _TRAINING_STEPS + 1)[:-1]
        levels = shift * even / (1 + (shift - 1) * even)
        timesteps = (levels * _TRAINING_STEPS).astype(np.int64)
        chosen = timesteps[list(indices)]
        first = np.searchsorted(-timesteps, -chosen, side="left")
        last = np.searchsorted(-timesteps, -chosen, side="right") - 1

        def rounded(places: NDArray[np.int64]) -> tuple[float, ...]:
            return tuple(float(level) for level in levels[places].astype(np.float32))

        return cls(
            tuple(int(timestep) for timestep in chosen),
            rounded(np.array(indices)),
            rounded(first),
            rounded(np.minimum(first + 1, last)),
        )


def clean(sample: torch.Tensor, flow: torch.Tensor, sigma: float) -> torch.Tensor:
    """The clean latent that `flow` points to from `sample` at noise level `sigma`, float64."""
    return sample.double() - sigma * flow.double()


def renoise(x0: torch.Tensor, noise: torch.Tensor, sigma: float) -> torch.Tensor:
    """`x0` (float64) brought to noise level `sigma`; float32."""
    return ((1 - sigma) * x0 + sigma * noise.double()).float()


class Noise:
    """The two random streams of a session, drawn on the CPU so that every device agrees."""

    def __init__(self, seed: int, steps: int) -> None:
        self._steps = steps
        self._start = torch.Generator().manual_seed(seed)
        self._between = torch.Generator().manual_seed((seed ^ _RENOISE_SALT) & 0x7FFFFFFFFFFFFFFF)

    def draw(self, shape: tuple[int, ...], device: torch.device) -> list[torch.Tensor]:
        """The noise of one chunk, float32 `shape` each: where it starts, then between its steps."""
        streams = [self._start, *[self._between] * (self._steps - 1)]
        return [torch.randn(shape, generator=stream).to(device) for stream in streams]
