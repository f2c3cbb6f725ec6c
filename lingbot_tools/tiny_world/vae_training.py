"""Stage 1: the Wan-architecture VAE at a small width, on films of the tiny world."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import (
    WanAttentionBlock,
    WanCausalConv3d,
    WanResidualBlock,
    WanRMS_norm,
)
from numpy.typing import NDArray
from torch.nn import functional

from lingbot_tools.tiny_world.loop import Losses, Work, optimisers
from lingbot_tools.tiny_world.renderer import render
from lingbot_tools.tiny_world.scene import FIRST_TRAINING_SCENE, Scene, stroll

_KL_WEIGHT = 5e-4


@dataclass(frozen=True)
class VAEConfig:
    base_dim: int = 12
    pictures: int = 8
    """Of one step, at first: different ones teach more than the frames of a film."""
    picture_steps: int = 1200
    films: tuple[tuple[int, int], ...] = ((29, 1), (13, 2))
    """Frames and number of the films of one step, in turn, after that. After 29 frames the memory
    of every layer is as full as it gets: what was trained on fewer drifts off in longer ones."""
    kernel_rate: float = 2e-2
    learning_rate: float = 1.5e-3
    """Of all that is no kernel."""


def build_vae(base_dim: int, seed: int) -> Any:
    """An untrained AutoencoderKLWan, faster than diffusers' and the same but for rounding.

    Its residual branches add nothing at first, which trains sooner.
    """
    torch.manual_seed(seed)
    vae: Any = AutoencoderKLWan(base_dim=base_dim, z_dim=16)  # type: ignore[no-untyped-call]
    for module in vae.modules():
        if isinstance(module, WanRMS_norm):
            setattr(module, "forward", partial(_norm, module))  # noqa: B010
        elif isinstance(module, WanCausalConv3d):
            setattr(module, "forward", partial(_convolve, module))  # noqa: B010
        elif isinstance(module, (WanResidualBlock, WanAttentionBlock)):
            last: Any = module.conv2 if isinstance(module, WanResidualBlock) else module.proj
            torch.nn.init.zeros_(last.weight)
            torch.nn.init.zeros_(last.bias)
    return vae


def _convolve(
    convolution: Any, x: torch.Tensor, cache_x: torch.Tensor | None = None
) -> torch.Tensor:
    if cache_x is not None or x.shape[2] > 1 or convolution.stride[0] > 1:
        result: torch.Tensor = WanCausalConv3d.forward(convolution, x, cache_x)
        return result
    # Nothing is before a first frame, so the newest part of the kernel does it all.
    newest = convolution.weight[:, :, -1]
    width, _, height, _, _, _ = convolution._padding
    flat = functional.conv2d(
        x[:, :, 0], newest, convolution.bias, convolution.stride[1:], (height, width)
    )
    return flat.unsqueeze(2)


def _norm(norm: Any, x: torch.Tensor) -> torch.Tensor:
    square = x.square().sum(1, keepdim=True, dtype=torch.float32)
    factor = ((square + 1e-12).rsqrt() * norm.scale).to(x.dtype)
    normalised: torch.Tensor = x * factor * norm.gamma.to(x.dtype)
    return normalised


def load_vae(work: Work, base_dim: int) -> Any:
    """The trained VAE with normalised latents."""
    vae = build_vae(base_dim, 0).eval().requires_grad_(False)
    vae.load_state_dict(torch.load(work.path("vae-final.pt"), weights_only=True))
    return vae


class VAETrainee:
    """Implements `loop.Trainee`.

    Films go through the network group by group with its causal memory, as sessions do.
    """

    name = "vae"

    def __init__(self, config: VAEConfig, seed: int) -> None:
        self.config = config
        self.seed = seed
        self.module: Any = build_vae(config.base_dim, seed)
        outer = "encoder.conv_in", "decoder.conv_out"
        self.optimisers = optimisers(
            self.module,
            lambda name, parameter: parameter.ndim >= 4 and not name.startswith(outer),
            (config.kernel_rate, 0.0),
            config.learning_rate,
        )

    def losses(self, step: int) -> Losses:
        films = self.films(step)
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
        total = pixel + edge + _KL_WEIGHT * kl
        mse = functional.mse_loss(decoded.detach().clamp(-1, 1), films)
        return {"total": total, "pixel": pixel, "kl": kl, "psnr": -10 * torch.log10(mse / 4)}

    def films(self, step: int) -> torch.Tensor:
        """Step number `step`'s films, [batch, 3, frames, H, W] in [-1, 1].

        Single pictures first.
        """
        random = np.random.default_rng([self.seed, step, 1])
        if step < self.config.picture_steps:
            frames, batch = 1, self.config.pictures
        else:
            frames, batch = self.config.films[step % len(self.config.films)]
        films = []
        for _ in range(batch):
            number = int(random.integers(FIRST_TRAINING_SCENE, 2**31))
            scene = Scene(number)
            walk = stroll(scene, 3, number)
            films.append(to_pixels(render(scene, walk.video[-frames:])))
        return torch.stack(films)


def to_pixels(frames: NDArray[np.uint8]) -> torch.Tensor:
    """Frames [n, H, W, 3] as the network sees them, float32 [3, n, H, W] in [-1, 1]."""
    return torch.from_numpy(frames).permute(3, 0, 1, 2).float() / 127.5 - 1


@torch.no_grad()
def latent_statistics(
    vae: Any, batches: Iterable[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and deviation [z] of the raw latents of batches of films [n, 3, frames, H, W]."""
    latents = [vae.encode(films).latent_dist.mean.transpose(0, 1).flatten(1) for films in batches]
    return torch.cat(latents, 1).mean(1), torch.cat(latents, 1).std(1)


def released_statistics(vae: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and deviation [z, 1, 1, 1] of raw latents as the released VAE's config has them."""
    config = vae.config
    mean, std = (torch.tensor(values) for values in (config.latents_mean, config.latents_std))
    return mean.view(-1, 1, 1, 1), std.view(-1, 1, 1, 1)


@torch.no_grad()
def normalise(vae: Any, mean: torch.Tensor, std: torch.Tensor) -> None:
    """Change the convolutions around the latents so that the config's statistics hold for them.

    `mean` and `std` [z] are the raw latents' own. Pictures go through encoder and decoder as
    before; in between, a raw latent z becomes (z - mean) / std · latents_std + latents_mean.
    """
    to_mean, to_std = (values.flatten() for values in released_statistics(vae))
    scale = to_std / std
    encode, decode = vae.quant_conv, vae.post_quant_conv
    channels = len(mean)
    encode.weight[:channels] *= scale.view(-1, 1, 1, 1, 1)
    encode.bias[:channels] = (encode.bias[:channels] - mean) * scale + to_mean
    encode.bias[channels:] += 2 * scale.log()
    decode.bias += decode.weight.flatten(1) @ (mean - to_mean / scale)
    decode.weight /= scale.view(1, -1, 1, 1, 1)
