"""Cameras and controls, from keys and from a recorded trajectory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lingbot_triton.options import SessionOptions
from lingbot_triton.world.camera import Camera, pixel_intrinsics, relative_poses
from lingbot_triton.world.control import control, rays
from lingbot_triton.world.trajectory import at_latent_rate

CPU = torch.device("cpu")


@pytest.mark.parametrize("scale_name", ["control_{}", "control_{}_unscaled"])
def test_control_from_keys(golden, scale_name):
    expected, options = golden.file("control"), SessionOptions()
    scale = 1.0 if "unscaled" in scale_name else options.translation_scale
    directions = rays(pixel_intrinsics(None, None, golden.geometry), golden.geometry, CPU)
    camera, before, compared = Camera(3), None, 0
    for index, keys in enumerate(golden.keys):
        poses = camera.follow_keys(keys, options)
        np.testing.assert_allclose(poses, expected[f"poses_{index}"], rtol=0, atol=1e-12)
        tensor = control(golden.kind, relative_poses(poses, before, scale), directions, keys)
        before = poses[-1]
        wanted = expected.get(scale_name.format(index))
        if wanted is not None:
            np.testing.assert_allclose(tensor[None].numpy(), wanted, rtol=0, atol=1e-5)
            compared += 1
    assert compared == (1 if "unscaled" in scale_name else len(golden.keys))


def test_control_of_a_recorded_trajectory(cam):
    expected = cam.file("control")
    focal_and_centre = tuple(float(value) for value in expected["offline_intrinsics"][0])
    options = SessionOptions(intrinsics=focal_and_centre, intrinsics_size=(832, 480))
    directions = rays(
        pixel_intrinsics(options.intrinsics, options.intrinsics_size, cam.geometry),
        cam.geometry,
        CPU,
    )
    relative = relative_poses(at_latent_rate(expected["offline_poses"]), None, 1.0)
    tensor = control("cam", relative, directions)
    np.testing.assert_allclose(tensor[None].numpy(), expected["offline_control"], rtol=0, atol=1e-5)
