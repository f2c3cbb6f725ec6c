"""The network's control tensor: each pixel's ray, and which keys are held."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from lingbot_triton.world.camera import Poses
from lingbot_triton.world.geometry import SPATIAL_STRIDE, Geometry

_ACT_KEYS = "wasd"
CONTROL_CHANNELS = {"cam": 6, "act": 3 + len(_ACT_KEYS)}
"""Channels per pixel of each control type; 64 times as many per latent cell."""


def rays(
    intrinsics: tuple[float, float, float, float], geometry: Geometry, device: torch.device
) -> torch.Tensor:
    """Unit ray directions at pixel centres, float64 [3, 64, h, w], 8x8 blocks to channels."""
    fx, fy, cx, cy = intrinsics
    height, width = geometry.latent
    rows = torch.arange(geometry.height, dtype=torch.float64, device=device) + 0.5
    columns = torch.arange(geometry.width, dtype=torch.float64, device=device) + 0.5
    y, x = torch.meshgrid((rows - cy) / fy, (columns - cx) / fx, indexing="ij")
    directions = torch.stack((x, y, torch.ones_like(x)))
    directions /= torch.linalg.vector_norm(directions, dim=0)
    blocks = directions.view(3, height, SPATIAL_STRIDE, width, SPATIAL_STRIDE)
    return blocks.permute(0, 2, 4, 1, 3).reshape(3, SPATIAL_STRIDE**2, height, width)


def control(
    kind: str, relative: Poses, directions: torch.Tensor, keys: Iterable[str] = ()
) -> torch.Tensor:
    """The control tensor, float32 [channels * 64, n, h, w], channels in order (c, row, column).

    `cam`: ray origin and unit ray direction. `act`: unit ray direction, then w a s d as 0 or 1.
    `relative` is [n, 4, 4]; `directions` come from `rays`. All arithmetic is float64.
    """
    moves = torch.from_numpy(relative).to(directions.device)
    directed = torch.einsum("nij,jphw->ipnhw", moves[:, :3, :3], directions)
    cells = directed.shape[1:]
    if kind == "cam":
        origin = moves[:, :3, 3].T.reshape(3, 1, -1, 1, 1).expand(3, *cells)
        parts = (origin, directed)
    else:
        pressed_keys = set(keys)
        pressed = directed.new_tensor([float(key in pressed_keys) for key in _ACT_KEYS])
        parts = (directed, pressed.view(-1, 1, 1, 1, 1).expand(-1, *cells))
    return torch.cat(parts).float().flatten(0, 1)
