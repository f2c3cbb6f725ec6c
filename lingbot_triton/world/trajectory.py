"""Recorded camera trajectories, which come at video rate."""

from __future__ import annotations

import numpy as np

from lingbot_triton.world.camera import Poses
from lingbot_triton.world.geometry import TEMPORAL_STRIDE


def at_latent_rate(poses: Poses) -> Poses:
    """Camera-to-world poses [4n - 3, 4, 4] at video rate, interpolated to [n, 4, 4] latent frames.

    Translations linearly, rotations by slerp, at n times spread evenly from first to last.
    """
    count = (len(poses) - 1) // TEMPORAL_STRIDE + 1
    result = np.tile(np.eye(4), (count, 1, 1))
    for index, time in enumerate(np.linspace(0, len(poses) - 1, count)):
        before = min(int(time), max(len(poses) - 2, 0))
        after = min(before + 1, len(poses) - 1)
        share = float(time - before)
        start, end = poses[before], poses[after]
        result[index, :3, 3] = start[:3, 3] + share * (end[:3, 3] - start[:3, 3])
        result[index, :3, :3] = start[:3, :3] @ _part_of(start[:3, :3].T @ end[:3, :3], share)
    return result


def _part_of(turn: Poses, share: float) -> Poses:
    """The rotation by `share` of the angle of `turn` [3, 3], about the same axis."""
    skew = (turn - turn.T) / 2
    sine = float(np.linalg.norm((skew[2, 1], skew[0, 2], skew[1, 0])))
    angle = np.arctan2(sine, (np.trace(turn) - 1) / 2)
    if sine < 1e-12:  # no turn, or half of one, whose axis the skew part does not tell
        return turn if share == 1 else np.eye(3)
    axis = skew / sine
    part: Poses = np.eye(3) + np.sin(share * angle) * axis
    part += (1 - np.cos(share * angle)) * (axis @ axis)
    return part
