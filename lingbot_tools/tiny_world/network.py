"""The transformer's size, and its weights before training."""

from __future__ import annotations

import torch
from torch import nn

from lingbot_triton.world.config import TransformerConfig
from lingbot_triton.world.dit import WorldTransformer
from lingbot_triton.world.layers import Attention
from lingbot_triton.world.rope import rope_frequencies

TEXT_WIDTH = 64

_SAMPLE_SHARE = 2.0
"""How loud the noisy sample is in the residual stream, over what the blocks add at first."""

_LOOKS = (
    ((0, 0, 0), (-1, 0, 0), (-1, 0, -1), (-1, 0, 1), (-2, 0, 0), (-1, -1, 0), (-1, 1, 0)),
    ((-1, 0, 0), (-2, 0, -1), (-2, 0, 1), (-3, 0, -1), (-3, 0, 1), (-2, 0, 0), (-3, 0, 0)),
)
"""Where the heads of even and odd layers look at first: latent frames, rows, columns from a token.

A chunk's three frames have the newest clean one 1, 2 and 3 frames behind them.
"""
_LOOK_BIASES = (4.0, 2.0)
"""On the fastest pair of each axis in the rope, and the next, beside projections of deviation 1."""
_LOOK_GAIN = 2.0


TINY = TransformerConfig(256, 512, 8, 4, control_type="cam", text_dim=TEXT_WIDTH)
"""The shape of the embedded weights."""


@torch.no_grad()
def build_network(config: TransformerConfig, seed: int) -> WorldTransformer:
    """Untrained weights that know what would take long to learn.

    Where the width allows it, the first flow is about the noisy sample, which at high noise is most
    of the flow; and heads look at a token's neighbours in the frames before, as the next picture is
    mostly this one, moved a little.
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
    for index, block in enumerate(network.layers):
        nn.init.normal_(block.modulation, std=0.02)
        _look_around(block.self_attn, _LOOKS[index % len(_LOOKS)])
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
    axes = torch.eye(config.dim, patches)  # so that a timestep's modulation can mute the noise
    weight = network.patch_embedding.weight.flatten(1)
    weight[:, :patches] = axes * _SAMPLE_SHARE
    # Patches come as (c, row, column) and leave as (row, column, c).
    leaving = axes.T.view(config.out_dim, 4, -1).transpose(0, 1).reshape(patches, -1)
    # The head's norm divides by the stream's deviation, to which the sample gives this much.
    deviation = _SAMPLE_SHARE * (patches / config.dim) ** 0.5
    network.head.head.weight.copy_(leaving * (deviation / _SAMPLE_SHARE))


def _look_around(attention: Attention, looks: tuple[tuple[int, int, int], ...]) -> None:
    """Each head's attention is highest at one of `looks`; heads beyond them look anywhere.

    With equal biases on queries and keys, rotary positions make the logit fall with the distance.
    Rotated as if the query were elsewhere, it is the distance from there.
    """
    heads, pairs = attention.heads, attention.head_dim // 2
    spatial = attention.head_dim // 6
    starts = (0, pairs - 2 * spatial, pairs - spatial)
    key = torch.zeros(pairs, dtype=torch.complex64)
    gain = torch.ones(pairs)
    for start in starts:
        key[start : start + 2] = torch.tensor(_LOOK_BIASES)
        gain[start : start + 2] = _LOOK_GAIN
    for head, look in zip(range(heads), looks, strict=False):
        rows = slice(head * attention.head_dim, (head + 1) * attention.head_dim)
        query = key * _rope_of(attention.head_dim, look)
        attention.q.bias[rows] = torch.view_as_real(query).flatten()
        attention.k.bias[rows] = torch.view_as_real(key).flatten()
        for norm in (attention.norm_q, attention.norm_k):
            norm.weight[rows] = gain.repeat_interleave(2)


def _rope_of(head_dim: int, offset: tuple[int, int, int]) -> torch.Tensor:
    """The rope's rotation of a head's pairs over the offset, complex64 [head_dim / 2]."""
    frames, rows, columns = (abs(steps) for steps in offset)
    grid = rope_frequencies(head_dim, frames, 1, rows + 1, columns + 1, torch.device("cpu"))
    pairs = grid[-1, 0]
    columns_from = len(pairs) - head_dim // 6
    rows_from = columns_from - head_dim // 6
    parts = (pairs[:rows_from], pairs[rows_from:columns_from], pairs[columns_from:])
    signed = zip(parts, offset, strict=True)
    return torch.cat([part.conj() if steps < 0 else part for part, steps in signed])
