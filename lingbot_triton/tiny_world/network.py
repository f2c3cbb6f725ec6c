"""The transformer's size, and its weights before training."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from lingbot_triton.world.dit import WorldTransformer
from lingbot_triton.world.geometry import TransformerConfig

TEXT_WIDTH = 64

_SAMPLE_SHARE = 2.0
"""How loud the noisy sample is in the residual stream, over what the blocks add at first."""


@dataclass(frozen=True)
class NetworkSize:
    dim: int = 192
    layers: int = 8
    heads: int = 6
    ffn: int = 384

    def config(self) -> TransformerConfig:
        return TransformerConfig(
            dim=self.dim,
            ffn_dim=self.ffn,
            num_heads=self.heads,
            num_layers=self.layers,
            control_type="cam",
            freq_dim=256,
            text_dim=TEXT_WIDTH,
        )


@torch.no_grad()
def build_network(config: TransformerConfig, seed: int) -> WorldTransformer:
    """Untrained weights; where the width allows it, the first flow is about the noisy sample.

    At high noise that is most of the flow, and takes long to learn.
    """
    torch.manual_seed(seed)
    network = WorldTransformer(config)
    for name, parameter in network.named_parameters():
        if name.endswith(".bias"):
            nn.init.zeros_(parameter)
        elif parameter.ndim > 1 and not name.endswith("modulation"):
            nn.init.xavier_uniform_(parameter.flatten(1))
        if name == "time_projection.1.weight":
            nn.init.zeros_(parameter)
    for block in network.layers:
        nn.init.normal_(block.modulation, std=0.02)
        block.modulation[:, (2, 5)] += 0.2  # gates that are shut would be slow to open
        nn.init.normal_(block.cam_scale_layer.weight, std=0.01)
        nn.init.normal_(block.cam_shift_layer.weight, std=0.01)
    nn.init.normal_(network.head.modulation, std=0.02)
    nn.init.zeros_(network.head.head.weight)
    _pass_the_sample_on(network)
    return network


def _pass_the_sample_on(network: WorldTransformer) -> None:
    config = network.config
    patches = 4 * config.out_dim
    if config.dim < 2 * patches:
        return
    axes = torch.linalg.qr(torch.randn(config.dim, patches))[0]
    weight = network.patch_embedding.weight.flatten(1)
    weight[:, :patches] = axes * _SAMPLE_SHARE
    # Patches come as (c, row, column) and leave as (row, column, c).
    leaving = axes.T.view(config.out_dim, 4, -1).transpose(0, 1).reshape(patches, -1)
    # The head's norm divides by the stream's deviation, to which the sample gives this much.
    deviation = _SAMPLE_SHARE * (patches / config.dim) ** 0.5
    network.head.head.weight.copy_(leaving * (deviation / _SAMPLE_SHARE))
