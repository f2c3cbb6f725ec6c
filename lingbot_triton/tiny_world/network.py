"""The transformer's size, and its weights before training."""

from __future__ import annotations

import torch
from torch import nn

from lingbot_triton.world.dit import WorldTransformer
from lingbot_triton.world.geometry import TransformerConfig

TEXT_WIDTH = 64


def small_config(dim: int = 192, layers: int = 8, heads: int = 6, ffn: int = 384) -> (
    TransformerConfig
):
    return TransformerConfig(
        dim=dim,
        ffn_dim=ffn,
        num_heads=heads,
        num_layers=layers,
        control_type="cam",
        freq_dim=256,
        text_dim=TEXT_WIDTH,
    )


@torch.no_grad()
def build_network(config: TransformerConfig, seed: int) -> WorldTransformer:
    """Untrained weights: the flow is 0, and the camera and the time have no effect yet."""
    torch.manual_seed(seed)
    network = WorldTransformer(config)
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
    nn.init.xavier_uniform_(network.patch_embedding.weight.flatten(1))
    nn.init.zeros_(network.patch_embedding.bias)
    nn.init.zeros_(network.time_projection[1].weight)
    for block in network.layers:
        nn.init.normal_(block.modulation, std=0.02)
        block.modulation[:, (2, 5)] += 0.5  # gates that are shut would be slow to open
        nn.init.normal_(block.cam_scale_layer.weight, std=0.01)
        nn.init.normal_(block.cam_shift_layer.weight, std=0.01)
    nn.init.normal_(network.head.modulation, std=0.02)
    nn.init.zeros_(network.head.head.weight)
    return network
