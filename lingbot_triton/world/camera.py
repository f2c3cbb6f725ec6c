"""From held keys or poses to the control tensor of the network.

Poses are camera-to-world, float64 [n, 4, 4], with OpenCV axes (x right, y down, z forward).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lingbot_triton.options import SessionOptions
from lingbot_triton.protocol import KEYS
from lingbot_triton.world.errors import InputError
from lingbot_triton.world.family import WORLD_FAST
from lingbot_triton.world.geometry import SPATIAL_STRIDE, TEMPORAL_STRIDE, Geometry

CHUNK = WORLD_FAST.chunk_latent_frames

Poses = NDArray[np.float64]

_STEPS_PER_LATENT = TEMPORAL_STRIDE
_ACT_KEYS = "wasd"
CONTROL_CHANNELS = {"cam": 6, "act": 3 + len(_ACT_KEYS)}
"""Channels per pixel of each control type; 64 times as many per latent cell."""

_ROTATION_TOLERANCE = 1e-2
"""How far a given pose's rotation may be from orthonormal: public poses are float32."""


def _turn_x(radians: float) -> Poses:
    c, s = math.cos(radians), math.sin(radians)
    return np.array([[1, 0, 0], [0, c, -s], [0, s, c]])


def _turn_y(radians: float) -> Poses:
    c, s = math.cos(radians), math.sin(radians)
    return np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]])


@dataclass
class Camera:
    """Where a session's camera stands after the last chunk."""

    pose: Poses = field(default_factory=lambda: np.eye(4))
    pitch_degrees: float = 0.0
    started: bool = False

    def follow_keys(self, keys: str, options: SessionOptions) -> Poses:
        """Move by the held `keys` for one chunk; poses [3, 4, 4] at latent rate.

        The very first pose of a session is the initial one, so its chunk moves one interval less.
        Raises InputError for an unknown key.
        """
        unknown = sorted(set(keys) - set(KEYS))
        if unknown:
            raise InputError(f"unknown key {unknown[0]!r}; keys are {' '.join(KEYS)}")
        poses = [] if self.started else [self.pose.copy()]
        while len(poses) < CHUNK:
            for _ in range(_STEPS_PER_LATENT):
                self._move(keys, options)
            poses.append(self.pose.copy())
        self.started = True
        return np.stack(poses)

    def follow_poses(self, poses: NDArray[Any]) -> Poses:
        """Take the given poses for one chunk; later keys go on from the last of them.

        Raises InputError where they are not three rigid camera-to-world matrices.
        """
        checked = check_poses(poses)
        self.pose = checked[-1].copy()
        self.pitch_degrees = math.degrees(math.asin(min(1.0, max(-1.0, -self.pose[1, 2]))))
        self.started = True
        return checked

    def _move(self, keys: str, options: SessionOptions) -> None:
        held = {key: float(key in keys) for key in KEYS}
        yaw = options.yaw_step_degrees * (held["l"] - held["j"])
        pitch = options.pitch_step_degrees * (held["i"] - held["k"])
        if abs(self.pitch_degrees + pitch) > options.pitch_limit_degrees:
            pitch = 0.0
        self.pitch_degrees += pitch
        turned = _turn_y(math.radians(yaw)) @ self.pose[:3, :3] @ _turn_x(math.radians(pitch))
        ahead = _horizontal(turned[:, 2]) * (held["w"] - held["s"])
        aside = _horizontal(turned[:, 0]) * (held["d"] - held["a"])
        self.pose[:3, :3] = turned
        self.pose[:3, 3] += options.move_step * (ahead + aside)


def _horizontal(axis: Poses) -> Poses:
    flat: Poses = axis * np.array([1.0, 0.0, 1.0])
    flat /= np.linalg.norm(flat) + 1e-6
    return flat


def check_poses(poses: NDArray[Any], count: int = CHUNK) -> Poses:
    """`poses` as float64 [count, 4, 4]; raises InputError with the numbers that do not fit."""
    if poses.shape != (count, 4, 4):
        raise InputError(f"poses have shape {list(poses.shape)}; they must be [{count}, 4, 4]")
    checked = poses.astype(np.float64)
    if not np.isfinite(checked).all():
        raise InputError("poses must be finite numbers")
    if np.abs(checked[:, 3] - np.array([0, 0, 0, 1])).max() > _ROTATION_TOLERANCE:
        raise InputError("the last row of every pose must be 0 0 0 1")
    turns = checked[:, :3, :3]
    error = np.abs(turns @ turns.transpose(0, 2, 1) - np.eye(3)).max()
    if error > _ROTATION_TOLERANCE or np.linalg.det(turns).min() < 0:
        raise InputError(
            f"poses must be rotations: R·Rᵀ is {error:.3g} from the identity, at most "
            f"{_ROTATION_TOLERANCE} is allowed, and det R must be 1"
        )
    return checked


def relative_poses(poses: Poses, before: Poses | None, scale: float) -> Poses:
    """Each pose relative to the one before it, [n, 4, 4].

    The first is relative to `before`, the previous chunk's last pose, or is the identity without
    one. Translations are divided by the longest of these n, where that is not 0, times `scale`.
    """
    earlier = np.concatenate((poses[:1] if before is None else before[None], poses[:-1]))
    back = earlier[:, :3, :3].transpose(0, 2, 1)
    relative = np.tile(np.eye(4), (len(poses), 1, 1))
    relative[:, :3, :3] = back @ poses[:, :3, :3]
    # The difference first: standing still must give exactly 0, which is not scaled up.
    relative[:, :3, 3] = (back @ (poses - earlier)[:, :3, 3:])[..., 0]
    longest = np.linalg.norm(relative[:, :3, 3], axis=-1).max()
    if longest > 0:
        relative[:, :3, 3] *= scale / longest
    return relative


def pixel_intrinsics(
    options: SessionOptions, geometry: Geometry
) -> tuple[float, float, float, float]:
    """fx, fy, cx, cy in pixels of the session's frames; focal length = width by default."""
    width, height = geometry.width, geometry.height
    if options.intrinsics is None:
        return float(width), float(width), width / 2, height / 2
    from_width, from_height = options.intrinsics_size or (width, height)
    fx, fy, cx, cy = options.intrinsics
    x, y = width / from_width, height / from_height
    return fx * x, fy * y, cx * x, cy * y


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
    turned = torch.einsum("nij,jphw->ipnhw", moves[:, :3, :3], directions)
    cells = turned.shape[1:]
    if kind == "cam":
        origin = moves[:, :3, 3].T.reshape(3, 1, -1, 1, 1).expand(3, *cells)
        parts = (origin, turned)
    else:
        held = set(keys)
        pressed = turned.new_tensor([float(key in held) for key in _ACT_KEYS])
        parts = (turned, pressed.view(-1, 1, 1, 1, 1).expand(-1, *cells))
    return torch.cat(parts).float().flatten(0, 1)
