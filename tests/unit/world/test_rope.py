"""Rotary positions against the definition."""

from __future__ import annotations

import pytest
import torch
from reference_dit import rope

from lingbot_triton.world.rope import apply_rope, rope_frequencies

CPU = torch.device("cpu")
GRID = (2, 3, 2)


def tokens(head_dim: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(12, 2, head_dim, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("head_dim", [12, 16, 24, 128])
@pytest.mark.parametrize("first_frame", [0, 27, 5000])
def test_agrees_with_complex128(head_dim, first_frame):
    x = tokens(head_dim)
    turned = apply_rope(x, rope_frequencies(head_dim, first_frame, *GRID, CPU))
    torch.testing.assert_close(turned, rope(x, first_frame, GRID), rtol=0, atol=1e-6)


def test_a_full_head_splits_22_21_21():
    turn = rope_frequencies(128, 1, 1, 2, 3, CPU).angle()
    moved_by_row = (turn[3, 0] - turn[0, 0]).abs() > 0
    moved_by_column = (turn[1, 0] - turn[0, 0]).abs() > 0
    assert moved_by_row.nonzero().flatten().tolist() == list(range(22, 43))
    assert moved_by_column.nonzero().flatten().tolist() == list(range(43, 64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_half_precision_is_rounded_once(dtype):
    x, turn = tokens(24).to(dtype), rope_frequencies(24, 4, *GRID, CPU)
    turned = apply_rope(x, turn)
    assert turned.dtype == dtype
    assert torch.equal(turned, apply_rope(x.float(), turn).to(dtype))


def test_scores_depend_on_distance_only():
    q, k = tokens(24, 1), tokens(24, 2)
    near, far = (rope_frequencies(24, first, *GRID, CPU) for first in (0, 100_000))
    scores = [(apply_rope(q, turn) * apply_rope(k.roll(4, 0), turn)).sum() for turn in (near, far)]
    torch.testing.assert_close(scores[0], scores[1], rtol=1e-5, atol=1e-4)
