"""A camera that follows held keys or poses, by numpy alone.

Poses are camera-to-world, float64 [n, 4, 4], with OpenCV axes (x right, y down, z forward).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lingbot_triton.world.errors import InputError
from lingbot_triton.world.geometry import TEMPORAL_STRIDE, Geometry

Poses = NDArray[np.float64]

KEYS = "wasdijkl"
"""w a s d move along the ground, i k look up and down, j l to the left and right."""

POSE_TOLERANCE = 1e-2
"""How far a pose may be from a rigid one: published trajectories are float32."""


class CameraMotion(Protocol):
    """How far one step of a held key moves; a latent frame has four steps."""

    @property
    def move_step(self) -> float: ...
    @property
    def yaw_step_degrees(self) -> float: ...
    @property
    def pitch_step_degrees(self) -> float: ...
    @property
    def pitch_limit_degrees(self) -> float:
        """A step up or down beyond it is left out."""
        ...


def _about_x(radians: float) -> Poses:
    c, s = math.cos(radians), math.sin(radians)
    return np.array([[1, 0, 0], [0, c, -s], [0, s, c]])


def _about_y(radians: float) -> Poses:
    c, s = math.cos(radians), math.sin(radians)
    return np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]])


@dataclass
class Camera:
    """Where a session's camera stands after the last chunk."""

    chunk_latent_frames: int
    """Poses of one chunk."""
    pose: Poses = field(default_factory=lambda: np.eye(4))
    pitch_degrees: float = 0.0
    started: bool = False

    def follow_keys(self, keys: str, motion: CameraMotion) -> Poses:
        """Move by the held `keys` for one chunk; poses [n, 4, 4] at latent rate.

        The very first pose of a session is the initial one, so its chunk moves one interval less.
        Raises InputError for an unknown key.
        """
        keys = check_keys(keys)
        poses = [] if self.started else [self.pose.copy()]
        while len(poses) < self.chunk_latent_frames:
            for _ in range(TEMPORAL_STRIDE):
                self.move(keys, motion)
            poses.append(self.pose.copy())
        self.started = True
        return np.stack(poses)

    def follow_poses(self, poses: NDArray[Any]) -> Poses:
        """Take the given poses for one chunk; later keys go on from the last of them.

        Raises InputError where they are not a chunk's rigid camera-to-world matrices.
        """
        checked = check_poses(poses, self.chunk_latent_frames)
        self.pose = checked[-1].copy()
        self.pitch_degrees = math.degrees(math.asin(min(1.0, max(-1.0, -self.pose[1, 2]))))
        self.started = True
        return checked

    def move(self, keys: str, motion: CameraMotion) -> None:
        """One step of the held `keys`, which is a video frame."""
        pressed = {key: float(key in keys) for key in KEYS}
        yaw = motion.yaw_step_degrees * (pressed["l"] - pressed["j"])
        pitch = motion.pitch_step_degrees * (pressed["i"] - pressed["k"])
        if abs(self.pitch_degrees + pitch) > motion.pitch_limit_degrees:
            pitch = 0.0
        self.pitch_degrees += pitch
        rotation = _about_y(math.radians(yaw)) @ self.pose[:3, :3] @ _about_x(math.radians(pitch))
        ahead = _horizontal(rotation[:, 2]) * (pressed["w"] - pressed["s"])
        aside = _horizontal(rotation[:, 0]) * (pressed["d"] - pressed["a"])
        self.pose[:3, :3] = rotation
        self.pose[:3, 3] += motion.move_step * (ahead + aside)


def _horizontal(axis: Poses) -> Poses:
    flat: Poses = axis * np.array([1.0, 0.0, 1.0])
    flat /= np.linalg.norm(flat) + 1e-6
    return flat


def check_keys(keys: str) -> str:
    """The held `keys` in the order of `KEYS`, each once; raises InputError for an unknown one."""
    for key in keys:
        if key not in KEYS:
            raise InputError(f"unknown key {key!r}; keys are {' '.join(KEYS)}")
    return "".join(key for key in KEYS if key in keys)


def check_poses(poses: NDArray[Any], count: int, tolerance: float = POSE_TOLERANCE) -> Poses:
    """`poses` as float64 [count, 4, 4]; raises InputError where they are not rigid.

    Of a rotation R, R·Rᵀ may differ from the identity by `tolerance`, and so may the last row
    from 0 0 0 1.
    """
    if poses.shape != (count, 4, 4):
        raise InputError(f"poses has shape {list(poses.shape)}; it must be [{count}, 4, 4]")
    checked = poses.astype(np.float64)
    if not np.isfinite(checked).all():
        raise InputError("poses holds numbers that are not finite")
    rotation = checked[:, :3, :3]
    skew = np.abs(rotation @ rotation.transpose(0, 2, 1) - np.eye(3)).max()
    if skew > tolerance or np.linalg.det(rotation).min() < 0:
        raise InputError(
            "poses holds a matrix whose rotation part is not a rotation: R·Rᵀ is "
            f"{skew:.3g} from the identity, at most {tolerance} is allowed, and det R must be 1"
        )
    if np.abs(checked[:, 3] - np.array([0, 0, 0, 1])).max() > tolerance:
        raise InputError("poses holds a matrix whose last row is not 0 0 0 1")
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
    intrinsics: tuple[float, float, float, float] | None,
    size: tuple[int, int] | None,
    geometry: Geometry,
) -> tuple[float, float, float, float]:
    """fx, fy, cx, cy in pixels of the session's frames; focal length = width by default.

    `intrinsics` are for a picture of `size`, width and height, which defaults to the frames'.
    """
    width, height = geometry.width, geometry.height
    if intrinsics is None:
        return float(width), float(width), width / 2, height / 2
    from_width, from_height = size or (width, height)
    fx, fy, cx, cy = intrinsics
    x, y = width / from_width, height / from_height
    return fx * x, fy * y, cx * x, cy * y
