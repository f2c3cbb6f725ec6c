"""Compares cameras and control tensors."""

from __future__ import annotations

import torch

from lingbot_tools.regression.expectations import CHUNK, Expectations, Tensors
from lingbot_tools.regression.report import Report
from lingbot_triton.world.camera import Camera, Poses, pixel_intrinsics, relative_poses
from lingbot_triton.world.control import control, rays
from lingbot_triton.world.trajectory import at_latent_rate

RECORDED_SIZE = (832, 480)
"""Width and height that the intrinsics of recorded trajectories are given for."""
RECORDED = {"offline_control", "offline_poses", "offline_intrinsics"}

_CPU = torch.device("cpu")


def compare_controls(report: Report, expectations: Expectations, kind: str) -> None:
    """Poses and controls from the session's keys, and of a recorded trajectory."""
    tensors = expectations.tensors("control")
    if tensors is None:
        report.not_compared.append("control.safetensors")
        return
    options, geometry = expectations.options, expectations.geometry
    directions = rays(
        pixel_intrinsics(options.intrinsics, options.intrinsics_size, geometry), geometry, _CPU
    )
    camera = Camera(CHUNK)
    before: Poses | None = None
    known = RECORDED & set(tensors)
    for index, keys in enumerate(expectations.keys):
        poses = camera.follow_keys(keys, options)
        computed = {f"poses_{index}": ("poses", poses)}
        for name, scale in (("", options.translation_scale), ("_unscaled", 1.0)):
            relative = relative_poses(poses, before, scale)
            tensor = control(kind, relative, directions, keys)[None].numpy()
            computed[f"control_{index}{name}"] = ("control", tensor)
        for name in sorted(computed.keys() & set(tensors)):
            report.compare(f"control.{name}", *computed[name], tensors[name])
        known |= computed.keys()
        before = poses[-1]
    if set(tensors) >= RECORDED:
        _compare_recorded(report, expectations, kind, tensors)
    else:
        report.not_compared.append("control.offline_control")
    report.not_compared += sorted(f"control.{name}" for name in set(tensors) - known)


def _compare_recorded(
    report: Report, expectations: Expectations, kind: str, tensors: Tensors
) -> None:
    fx, fy, cx, cy = (float(value) for value in tensors["offline_intrinsics"][0])
    options = expectations.options.replace(
        intrinsics=(fx, fy, cx, cy), intrinsics_size=RECORDED_SIZE
    )
    geometry = expectations.geometry
    directions = rays(
        pixel_intrinsics(options.intrinsics, options.intrinsics_size, geometry), geometry, _CPU
    )
    relative = relative_poses(at_latent_rate(tensors["offline_poses"]), None, 1.0)
    mine = control(kind, relative, directions)[None].numpy()
    report.compare("control.offline_control", "control", mine, tensors["offline_control"])
