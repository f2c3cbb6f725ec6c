"""Encoder and decoder networks of Wan 2.1's causal video VAE, after diffusers' AutoencoderKLWan.

Layers, names of weights and numbers are those of that class, bit for bit. What Wan 2.1 does not use
is left out, and importing this costs none of that package's seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from lingbot_triton.world.vae_layers import (
    AttentionBlock,
    CausalConv3d,
    Downsample,
    Features,
    ResidualBlock,
    RMSNorm,
    Upsample,
)


@dataclass(frozen=True)
class VAEConfig:
    """Sizes of the networks and statistics of raw latents, under diffusers' names."""

    base_dim: int = 96
    z_dim: int = 16
    dim_mult: tuple[int, ...] = (1, 2, 4, 4)
    num_res_blocks: int = 2
    temperal_downsample: tuple[bool, ...] = (False, True, True)
    latents_mean: tuple[float, ...] = (
        *(-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508),
        *(0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921),
    )
    latents_std: tuple[float, ...] = (
        *(2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743),
        *(3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160),
    )

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> VAEConfig:
        """From a parsed config.json of diffusers; raises ValueError for variants of Wan 2.2."""
        for name in ("attn_scales", "is_residual", "patch_size"):
            if config.get(name):
                raise ValueError(f"{name} is {config[name]!r}, which Wan 2.1 does not have")
        decoder_width = config.get("decoder_base_dim")
        if decoder_width not in (None, config.get("base_dim", cls.base_dim)):
            raise ValueError(f"decoder_base_dim is {decoder_width}, unlike the encoder's")
        known = {field.name for field in fields(cls)}
        sizes: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in config.items()
            if name in known
        }
        return cls(**sizes)


class MidBlock(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.resnets = nn.ModuleList((ResidualBlock(dim, dim), ResidualBlock(dim, dim)))
        self.attentions = nn.ModuleList((AttentionBlock(dim),))

    def forward(self, x: torch.Tensor, features: Features) -> torch.Tensor:
        for layer in (self.resnets[0], self.attentions[0], self.resnets[1]):
            x = layer(x, features)
        return x


class UpBlock(nn.Module):
    def __init__(self, channels: int, out: int, count: int, upsample: Upsample | None) -> None:
        super().__init__()
        widths = [channels] + [out] * count
        self.resnets = nn.ModuleList(ResidualBlock(*pair) for pair in pairwise(widths))
        self.upsamplers = nn.ModuleList([] if upsample is None else [upsample])

    def forward(self, x: torch.Tensor, features: Features) -> torch.Tensor:
        for layer in (*self.resnets, *self.upsamplers):
            x = layer(x, features)
        return x


class _Half(nn.Module):
    """What encoder and decoder have in common: both ends, and the numbering of memories."""

    norm_out: RMSNorm
    conv_in: CausalConv3d
    conv_out: CausalConv3d

    def _number(self) -> None:
        """Give each layer with a memory its index, in the order in which they compute."""
        layers = [
            module
            for module in self.modules()
            if (isinstance(module, (Downsample, Upsample)) and module.time_conv is not None)
            or (type(module) is CausalConv3d and module.kernel_size[0] > 1)
        ]
        self.memories = len(layers)
        for slot, layer in enumerate(layers):
            layer.slot = slot

    def _finish(self, x: torch.Tensor, features: Features) -> torch.Tensor:
        out: torch.Tensor = self.conv_out(functional.silu(self.norm_out(x)), features)
        return out


class EncoderNetwork(_Half):
    """Frames [1, 3, n, H, W], 1 at first and then 4, to raw moments [1, 2 z, 1, H/8, W/8]."""

    def __init__(self, config: VAEConfig) -> None:
        super().__init__()
        widths = [config.base_dim * factor for factor in (1, *config.dim_mult)]
        self.conv_in = CausalConv3d(3, widths[0], 3, 1)
        blocks: list[nn.Module] = []
        for index, (width, out) in enumerate(pairwise(widths)):
            for _ in range(config.num_res_blocks):
                blocks.append(ResidualBlock(width, out))
                width = out
            if index < len(config.temperal_downsample):
                blocks.append(Downsample(out, config.temperal_downsample[index]))
        self.down_blocks = nn.ModuleList(blocks)
        self.mid_block = MidBlock(widths[-1])
        self.norm_out = RMSNorm(widths[-1])
        self.conv_out = CausalConv3d(widths[-1], config.z_dim * 2, 3, 1)
        self._number()

    def forward(self, x: torch.Tensor, features: Features) -> torch.Tensor:
        x = self.conv_in(x, features)
        for layer in (*self.down_blocks, self.mid_block):
            x = layer(x, features)
        return self._finish(x, features)


class DecoderNetwork(_Half):
    """Raw latents [1, z, 1, h, w] to frames [1, 3, n, 8 h, 8 w], n is 1 at first and then 4."""

    def __init__(self, config: VAEConfig) -> None:
        super().__init__()
        widths = [config.base_dim * factor for factor in reversed(config.dim_mult)]
        self.conv_in = CausalConv3d(config.z_dim, widths[0], 3, 1)
        self.mid_block = MidBlock(widths[0])
        blocks: list[UpBlock] = []
        channels = widths[0]
        for width, temporal in zip(
            widths, (*reversed(config.temperal_downsample), None), strict=True
        ):
            upsample = None if temporal is None else Upsample(width, temporal)
            blocks.append(UpBlock(channels, width, config.num_res_blocks + 1, upsample))
            channels = width // 2
        self.up_blocks = nn.ModuleList(blocks)
        self.norm_out = RMSNorm(widths[-1])
        self.conv_out = CausalConv3d(widths[-1], 3, 3, 1)
        self._number()

    def forward(self, x: torch.Tensor, features: Features) -> torch.Tensor:
        x = self.conv_in(x, features)
        for layer in (self.mid_block, *self.up_blocks):
            x = layer(x, features)
        return self._finish(x, features)


class WanVAE(nn.Module):
    """Both networks and the projections between them and the latents."""

    def __init__(self, config: VAEConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = EncoderNetwork(config)
        self.quant_conv = CausalConv3d(config.z_dim * 2, config.z_dim * 2, 1)
        self.post_quant_conv = CausalConv3d(config.z_dim, config.z_dim, 1)
        self.decoder = DecoderNetwork(config)
