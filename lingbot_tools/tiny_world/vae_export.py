"""The trained VAE as the released one is stored: native names, latents of the same statistics."""

from __future__ import annotations

import re
from typing import Any

import torch

Weights = dict[str, torch.Tensor]

_RESNET = (
    ("norm1.gamma", "residual.0.gamma"),
    ("conv1.", "residual.2."),
    ("norm2.gamma", "residual.3.gamma"),
    ("conv2.", "residual.6."),
    ("conv_shortcut.", "shortcut."),
)
_ENDS = (
    (r"^quant_conv\.", "conv1."),
    (r"^post_quant_conv\.", "conv2."),
    (r"\.conv_in\.", ".conv1."),
    (r"\.norm_out\.", ".head.0."),
    (r"\.conv_out\.", ".head.2."),
    (r"\.mid_block\.resnets\.0\.", ".middle.0."),
    (r"\.mid_block\.attentions\.0\.", ".middle.1."),
    (r"\.mid_block\.resnets\.1\.", ".middle.2."),
    (r"^encoder\.down_blocks\.", "encoder.downsamples."),
)
_UP_BLOCK_LAYERS = 4
"""Three residual blocks and an upsampling; the last block has none."""


def native_name(name: str) -> str:
    """The native name of a weight of diffusers' AutoencoderKLWan."""
    for theirs, ours in _RESNET:
        name = name.replace(theirs, ours)
    for pattern, replacement in _ENDS:
        name = re.sub(pattern, replacement, name)

    def numbered(match: re.Match[str]) -> str:
        block, kind, layer = int(match[1]), match[2], match[3]
        offset = int(layer) if kind == "resnets" else _UP_BLOCK_LAYERS - 1
        return f"decoder.upsamples.{_UP_BLOCK_LAYERS * block + offset}."

    return re.sub(r"^decoder\.up_blocks\.(\d+)\.(resnets|upsamplers)\.(\d+)\.", numbered, name)


def to_native(weights: Weights) -> Weights:
    """Weights of diffusers' AutoencoderKLWan under their native names."""
    return {native_name(name): tensor for name, tensor in weights.items()}


@torch.no_grad()
def normalise(vae: Any, mean: torch.Tensor, std: torch.Tensor) -> None:
    """Change the convolutions around the latents so that the config's statistics hold for them.

    `mean` and `std` [z] are the raw latents' own. Pictures go through encoder and decoder as
    before; in between, a raw latent z becomes (z - mean) / std · latents_std + latents_mean.
    """
    to_mean, to_std = (
        torch.tensor(values, dtype=torch.float32)
        for values in (vae.config.latents_mean, vae.config.latents_std)
    )
    scale = to_std / std
    encode, decode = vae.quant_conv, vae.post_quant_conv
    channels = len(mean)
    encode.weight[:channels] *= scale.view(-1, 1, 1, 1, 1)
    encode.bias[:channels] = (encode.bias[:channels] - mean) * scale + to_mean
    encode.bias[channels:] += 2 * scale.log()
    decode.bias += decode.weight.flatten(1) @ (mean - to_mean / scale)
    decode.weight /= scale.view(1, -1, 1, 1, 1)
