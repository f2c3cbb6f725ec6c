"""Stage 1: the Wan-architecture VAE at a small width, on films of the tiny world."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKLWan
from torch.nn import functional

from lingbot_triton.tiny_world.loop import Losses
from lingbot_triton.tiny_world.renderer import render
from lingbot_triton.tiny_world.scene import Scene
from lingbot_triton.tiny_world.walk import stroll

_KL_WEIGHT = 2e-4
_EDGE_WEIGHT = 1.0


@dataclass(frozen=True)
class VAEConfig:
    base_dim: int = 12
    batch: int = 4
    learning_rate: float = 1.5e-3


def build_vae(base_dim: int, seed: int) -> Any:
    """An untrained AutoencoderKLWan."""
    torch.manual_seed(seed)
    return AutoencoderKLWan(base_dim=base_dim, z_dim=16)


class VAETrainee:
    """Implements `loop.Trainee`.

    Films go through the network group by group with its causal memory, as sessions do.
    """

    name = "vae"

    def __init__(self, config: VAEConfig, seed: int) -> None:
        self.config = config
        self.seed = seed
        self.module: Any = build_vae(config.base_dim, seed)
        self.optimisers: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(
                self.module.parameters(), config.learning_rate, (0.9, 0.98), weight_decay=0.0
            )
        ]

    def losses(self, step: int) -> Losses:
        films = torch.from_numpy(self.films(step))
        torch.manual_seed(hash((self.seed, step)) & 0x7FFFFFFF)  # the latents' noise
        with torch.autocast("cpu", torch.bfloat16):
            moments = self.module.encode(films).latent_dist
            mean, deviation = moments.mean.float(), moments.std.float()
            latents = mean + deviation * torch.randn_like(mean)
            decoded = self.module.decode(latents).sample.float()
        pixel = functional.l1_loss(decoded, films)
        edge = sum(
            functional.l1_loss(decoded.diff(dim=axis), films.diff(dim=axis)) for axis in (-1, -2)
        )
        square = mean.square() + deviation.square()
        kl = 0.5 * (square - 1 - 2 * deviation.log()).mean()
        total = pixel + _EDGE_WEIGHT * edge + _KL_WEIGHT * kl
        mse = functional.mse_loss(decoded.detach().clamp(-1, 1), films)
        return {"total": total, "pixel": pixel, "kl": kl, "psnr": -10 * torch.log10(mse / 4)}

    def films(self, step: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Step number `step`'s films, [batch, 3, frames, H, W] in [-1, 1].

        Short ones mostly; a longer one now and then fills the memory of every layer.
        """
        random = np.random.default_rng([self.seed, step, 1])
        frames = 13 if step % 8 == 7 else 5
        films = []
        for _ in range(self.config.batch if frames > 5 else 2 * self.config.batch):
            number = int(random.integers(2**31))
            scene = Scene.sample(number)
            walk = stroll(scene, 2, number)
            films.append(render(scene, walk.video[-frames:]))
        return np.stack(films).transpose(0, 4, 1, 2, 3).astype(np.float32) / 127.5 - 1


@torch.no_grad()
def latent_statistics(vae: Any, films: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and deviation [z] of the raw latents of `films` [n, 3, frames, H, W]."""
    latents = torch.cat([vae.encode(film.unsqueeze(0)).latent_dist.mean for film in films])
    return latents.mean(dim=(0, 2, 3, 4)), latents.std(dim=(0, 2, 3, 4))
