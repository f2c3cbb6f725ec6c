"""Comparing cameras and control tensors."""

from __future__ import annotations

import torch

from lingbot_tools.regression.expectations import Expectations, Tensors
from lingbot_tools.regression.report import Report
from lingbot_triton.world.camera import (
    Camera,
    Poses,
    control,
    pixel_intrinsics,
    rays,
    relative_poses,
)
from lingbot_triton.world.trajectory import at_latent_rate

RECORDED_SIZE = (832, 480)
"""Width and height that the intrinsics of recorded trajectories are given for."""

_CPU = torch.device("cpu")


def compare_controls(report: Report, expectations: Expectations, kind: str) -> None:
    """Poses and controls from the session's keys, and of a recorded trajectory."""
    tensors = expectations.tensors("control")
    if tensors is None:
        report.not_compared.append("control.safetensors")
        return
    options, geometry = expectations.options, expectations.geometry
    directions = rays(pixel_intrinsics(options, geometry), geometry, _CPU)
    camera = Camera()
    before: Poses | None = None
    compared = {"offline_control", "offline_poses", "offline_intrinsics"} & set(tensors)
    for index, keys in enumerate(expectations.keys):
        poses = camera.follow_keys(keys, options)
        if (name := f"poses_{index}") in tensors:
            report.compare(f"control.{name}", "poses", poses, tensors[name])
            compared.add(name)
        for name, scale in (
            (f"control_{index}", options.translation_scale),
            (f"control_{index}_unscaled", 1.0),
        ):
            if name in tensors:
                relative = relative_poses(poses, before, scale)
                mine = control(kind, relative, directions, keys)[None].numpy()
                report.compare(f"control.{name}", "control", mine, tensors[name])
                compared.add(name)
        before = poses[-1]
    _compare_recorded(report, expectations, kind, tensors)
    report.not_compared += sorted(f"control.{name}" for name in set(tensors) - compared)


def _compare_recorded(
    report: Report, expectations: Expectations, kind: str, tensors: Tensors
) -> None:
    if not {"offline_control", "offline_poses", "offline_intrinsics"} <= set(tensors):
        report.not_compared.append("control.offline_control")
        return
    fx, fy, cx, cy = (float(value) for value in tensors["offline_intrinsics"][0])
    options = expectations.options.replace(
        intrinsics=(fx, fy, cx, cy), intrinsics_size=RECORDED_SIZE
    )
    geometry = expectations.geometry
    directions = rays(pixel_intrinsics(options, geometry), geometry, _CPU)
    relative = relative_poses(at_latent_rate(tensors["offline_poses"]), None, 1.0)
    mine = control(kind, relative, directions)[None].numpy()
    report.compare("control.offline_control", "control", mine, tensors["offline_control"])
