"""Rotary positions over frame, row and column.

Of a head's c = d/2 pairs the first c - 2(c//3) turn with the frame, then c//3 with the row and c//3
with the column. A frame's position is absolute in the session and computed, so no table ends it;
the released weights were trained on at most 1024 latent frames.
"""

from __future__ import annotations

import torch

_THETA = 10000.0


def _axis(head_share: int, positions: torch.Tensor) -> torch.Tensor:
    """Unit complex numbers [positions, head_share / 2] of one axis, complex128."""
    steps = torch.arange(0, head_share, 2, dtype=torch.float64, device=positions.device)
    angles = torch.outer(positions, _THETA ** (-steps / head_share))
    return torch.polar(torch.ones_like(angles), angles)


def rope_frequencies(
    head_dim: int, first_frame: int, frames: int, height: int, width: int, device: torch.device
) -> torch.Tensor:
    """Complex64 [frames * height * width, 1, head_dim / 2] for a grid of tokens.

    Angles and their sines are float64; only the result is rounded.
    """
    spatial = 2 * (head_dim // 6)
    temporal = head_dim - 2 * spatial

    def positions(start: int, count: int) -> torch.Tensor:
        return torch.arange(start, start + count, dtype=torch.float64, device=device)

    grid = (frames, height, width, -1)
    by_frame = _axis(temporal, positions(first_frame, frames))[:, None, None].expand(grid)
    by_row = _axis(spatial, positions(0, height))[None, :, None].expand(grid)
    by_column = _axis(spatial, positions(0, width))[None, None].expand(grid)
    rotated = torch.cat((by_frame, by_row, by_column), dim=-1).to(torch.complex64)
    return rotated.view(frames * height * width, 1, head_dim // 2)


def _pairs(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_complex(x.view(*x.shape[:-1], -1, 2))


def apply_rope(x: torch.Tensor, freqs_cis: torch.Tensor) -> torch.Tensor:
    """Rotate x [s, heads, d] by `freqs_cis` [s, 1, d/2]; float32 arithmetic, x's dtype out."""
    rotated = torch.view_as_real(_pairs(x.float()) * freqs_cis).flatten(-2)
    return rotated.to(x.dtype)
