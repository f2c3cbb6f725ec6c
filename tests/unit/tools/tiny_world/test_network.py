"""What the tiny world's transformer knows before it is trained."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lingbot_tools.tiny_world.network import TINY, build_network
from lingbot_triton.world.dit import WorldTransformer
from lingbot_triton.world.rope import apply_rope, rope_frequencies

FRAMES, ROWS, COLUMNS = 15, 4, 6
LOOKS = [
    [(0, 0, 0), (-1, 0, 0), (-1, 0, -1), (-1, 0, 1), (-2, 0, 0), (-1, -1, 0), (-1, 1, 0), None],
    [(-1, 0, 0), (-2, 0, -1), (-2, 0, 1), (-3, 0, -1), (-3, 0, 1), (-2, 0, 0), (-3, 0, 0), None],
]


@pytest.fixture(scope="module")
def network() -> WorldTransformer:
    return build_network(replace(TINY, num_layers=2, ffn_dim=64), 0)


@pytest.mark.parametrize("layer", [0, 1])
@torch.no_grad()
def test_heads_look_at_neighbours_in_the_frames_before(
    network: WorldTransformer, layer: int
) -> None:
    attention = network.layers[layer].self_attn
    turns = rope_frequencies(attention.head_dim, 0, FRAMES, ROWS, COLUMNS, torch.device("cpu"))
    # Of tokens that are all the same: only the place is left to tell them apart.
    query, key = (
        apply_rope(
            (bias * factor * norm.weight).repeat(len(turns), 1).view(len(turns), 8, -1), turns
        )
        for norm, bias in (
            (attention.norm_q, attention.q.bias),
            (attention.norm_k, attention.k.bias),
        )
        for factor in [(bias.square().mean() + 1).rsqrt()]  # beside a projection of deviation 1
    )
    row, column, frame = 2, 3, FRAMES - 1
    asking = (frame * ROWS + row) * COLUMNS + column
    logits = torch.einsum("hd,shd->hs", query[asking], key) / attention.head_dim**0.5
    for head, look in enumerate(LOOKS[layer]):
        if look is None:
            assert logits[head].abs().max() < 1e-6
            continue
        found = torch.unravel_index(logits[head].argmax(), (FRAMES, ROWS, COLUMNS))
        expected = frame + look[0], row + look[1], column + look[2]
        assert tuple(int(index) for index in found) == expected
        assert logits[head].softmax(-1).max() > 0.2


@torch.no_grad()
def test_the_first_flow_is_about_the_noise(network: WorldTransformer) -> None:
    """Embedded as it is, carried past the blocks and out again by the head."""
    noise = torch.randn(100, 64, generator=torch.Generator().manual_seed(0))
    embedded = noise @ network.patch_embedding.weight.flatten(1)[:, :64].T
    leaving = torch.nn.functional.layer_norm(embedded, embedded.shape[-1:])
    flow = leaving @ network.head.head.weight.T
    patches = noise.view(100, 16, 4).transpose(1, 2).flatten(1)  # they leave with channels last
    assert (flow - patches).square().mean() < 0.05
