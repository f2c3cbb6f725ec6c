"""Cameras that follow keys and poses, and the controls they give."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lingbot_triton import protocol
from lingbot_triton.options import SessionOptions
from lingbot_triton.world.camera import (
    KEYS,
    Camera,
    check_keys,
    check_poses,
    pixel_intrinsics,
    relative_poses,
)
from lingbot_triton.world.control import control, rays
from lingbot_triton.world.errors import InputError
from lingbot_triton.world.geometry import Geometry
from lingbot_triton.world.trajectory import at_latent_rate

OPTIONS = SessionOptions()
CPU = torch.device("cpu")
SIZE = Geometry(32, 48)


def pose(x: float = 0, y: float = 0, z: float = 0, yaw: float = 0) -> np.ndarray:
    c, s = np.cos(yaw), np.sin(yaw)
    return np.array([[c, 0, s, x], [0, 1, 0, y], [-s, 0, c, z], [0, 0, 0, 1.0]])


def test_first_chunk_starts_where_the_camera_is_and_later_ones_move_on():
    camera = Camera(3)
    first, second = camera.follow_keys("w", OPTIONS), camera.follow_keys("w", OPTIONS)
    np.testing.assert_allclose(first[:, 2, 3], [0, 0.2, 0.4], atol=1e-5)
    np.testing.assert_allclose(second[:, 2, 3], [0.6, 0.8, 1.0], atol=1e-5)


@pytest.mark.parametrize(
    ("key", "axis", "sign"), [("w", 2, 1), ("s", 2, -1), ("d", 0, 1), ("a", 0, -1)]
)
def test_moving_keys(key, axis, sign):
    last = Camera(3).follow_keys(key, OPTIONS)[-1, :3, 3]
    assert np.sign(last[axis]) == sign
    assert np.abs(np.delete(last, axis)).max() == 0


@pytest.mark.parametrize(
    ("key", "axis", "sign"), [("l", 0, 1), ("j", 0, -1), ("i", 1, -1), ("k", 1, 1)]
)
def test_turning_keys_turn_the_view_axis(key, axis, sign):
    ahead = Camera(3).follow_keys(key, OPTIONS)[-1, :3, 2]
    assert np.sign(ahead[axis]) == sign
    assert ahead[axis] == pytest.approx(sign * np.sin(np.radians(16)))


def test_opposite_keys_cancel():
    np.testing.assert_array_equal(
        Camera(3).follow_keys("wsadijkl", OPTIONS), np.stack([np.eye(4)] * 3)
    )


def test_walking_stays_level_while_looking_up():
    camera = Camera(3)
    camera.follow_keys("i", OPTIONS)
    moved = camera.follow_keys("w", OPTIONS)
    assert np.abs(moved[:, 1, 3]).max() == 0
    assert moved[-1, 2, 3] == pytest.approx(12 * OPTIONS.move_step, rel=1e-5)


def test_a_step_beyond_the_pitch_limit_is_ignored():
    camera = Camera(3)
    options = SessionOptions(pitch_limit_degrees=5.0)
    camera.follow_keys("i", options)
    assert camera.pitch_degrees == 4.0
    camera.follow_keys("k", options)
    assert camera.pitch_degrees == -4.0


def test_unknown_key_is_refused_before_anything_moves():
    camera = Camera(3)
    with pytest.raises(InputError, match="unknown key 'x'"):
        camera.follow_keys("wx", OPTIONS)
    assert not camera.started
    np.testing.assert_array_equal(camera.pose, np.eye(4))


def test_keys_go_on_from_given_poses():
    leader, follower = Camera(3), Camera(3)
    follower.follow_poses(leader.follow_keys("wil", OPTIONS))
    assert follower.pitch_degrees == pytest.approx(leader.pitch_degrees)
    np.testing.assert_allclose(
        follower.follow_keys("wkj", OPTIONS), leader.follow_keys("wkj", OPTIONS), atol=1e-12
    )


def test_given_poses_are_the_cameras_own_copy():
    given = np.stack([pose(), pose(z=1), pose(z=2)])
    camera = Camera(3)
    camera.follow_poses(given)
    camera.follow_keys("w", OPTIONS)
    assert given[-1, 2, 3] == 2


@pytest.mark.parametrize(
    ("poses", "message"),
    [
        (np.eye(4)[None], r"\[1, 4, 4\]; it must be \[3, 4, 4\]"),
        (np.full((3, 4, 4), np.nan), "finite"),
        (np.stack([np.diag([2.0, 2, 2, 1])] * 3), "3 from the identity"),
        (np.stack([np.diag([1.0, 1, -1, 1])] * 3), "det R must be 1"),
        (np.stack([np.diag([1.0, 1, 1, 2])] * 3), "last row is not 0 0 0 1"),
    ],
)
def test_poses_that_are_none_are_refused(poses, message):
    with pytest.raises(InputError, match=message):
        check_poses(poses, 3)


def test_how_rigid_poses_must_be_is_for_the_caller_to_say():
    poses = np.stack([np.diag([1.002, 1, 1, 1])] * 3)
    assert check_poses(poses, 3).dtype == np.float64
    with pytest.raises(InputError, match=r"part is not a rotation: .* at most 0.001"):
        check_poses(poses, 3, tolerance=1e-3)


def test_keys_are_those_of_the_protocol_each_once_and_in_order():
    assert KEYS == protocol.KEYS
    assert check_keys("ladda") == "adl"
    with pytest.raises(InputError, match="unknown key 'x'; keys are w a s d"):
        check_keys("wx")


@pytest.mark.parametrize("count", [2, 4])
def test_a_chunk_has_as_many_poses_as_the_model_takes(count):
    camera = Camera(count)
    first, second = camera.follow_keys("w", OPTIONS), camera.follow_keys("w", OPTIONS)
    assert len(first) == len(second) == count
    assert second[-1, 2, 3] == pytest.approx((8 * count - 4) * OPTIONS.move_step, rel=1e-5)


def test_relative_poses_are_scaled_by_the_longest():
    poses = np.stack([pose(z=1), pose(z=3), pose(z=4)])
    relative = relative_poses(poses, pose(z=0), 3.0)
    np.testing.assert_allclose(relative[:, 2, 3], [1.5, 3.0, 1.5])
    # A session's first pose has nothing before it.
    np.testing.assert_allclose(relative_poses(poses, None, 3.0)[:, 2, 3], [0, 3.0, 1.5])


def test_relative_poses_are_seen_from_the_earlier_camera():
    turned = pose(x=5, yaw=np.pi / 2)
    relative = relative_poses(np.stack([turned]), pose(x=4, yaw=np.pi / 2), 1.0)
    np.testing.assert_allclose(relative[0], pose(z=1), atol=1e-15)


@pytest.mark.parametrize("key", ["", "ws"])
def test_standing_still_anywhere_is_exactly_still(key):
    camera = Camera(3)
    before = camera.follow_keys("wli", OPTIONS)[-1]
    relative = relative_poses(camera.follow_keys(key, OPTIONS), before, 3.0)
    assert np.abs(relative[:, :3, 3]).max() == 0


def test_intrinsics_default_to_the_width_and_scale_with_their_size():
    assert pixel_intrinsics(None, None, SIZE) == (48, 48, 24, 16)
    scaled = pixel_intrinsics((500, 400, 416, 240), (832, 480), SIZE)
    assert scaled == pytest.approx((500 * 48 / 832, 400 * 32 / 480, 24, 16))
    assert pixel_intrinsics((500, 400, 416, 240), None, SIZE) == (500, 400, 416, 240)


def test_rays_are_unit_and_go_through_pixel_centres():
    directions = rays((48.0, 48.0, 24.0, 16.0), SIZE, CPU)
    assert directions.shape == (3, 64, 4, 6)
    torch.testing.assert_close(directions.norm(dim=0), torch.ones_like(directions[0]))
    # Row 9, column 18 is row 1, column 2 of block (1, 2).
    x, y, z = directions[:, 1 * 8 + 2, 1, 2]
    assert float(x / z) == pytest.approx((18.5 - 24) / 48)
    assert float(y / z) == pytest.approx((9.5 - 16) / 48)


def test_cam_control_is_origin_then_direction():
    directions = rays((48.0, 48.0, 24.0, 16.0), SIZE, CPU)
    relative = np.stack([pose(), pose(x=1, y=2, z=3, yaw=0.3)])
    tensor = control("cam", relative, directions).view(6, 64, 2, 4, 6)
    assert tensor.dtype == torch.float32
    for axis in range(3):
        assert (tensor[axis, :, 0] == 0).all()
        assert (tensor[axis, :, 1] == axis + 1).all()
    expected = torch.from_numpy(relative[1, :3, :3]) @ directions[:, 5, 2, 3]
    torch.testing.assert_close(tensor[3:, 5, 1, 2, 3], expected.float())


def test_act_control_is_direction_then_the_four_moving_keys():
    directions = rays((48.0, 48.0, 24.0, 16.0), SIZE, CPU)
    tensor = control("act", np.stack([pose(z=9)]), directions, "sdl").view(7, 64, 1, 4, 6)
    torch.testing.assert_close(tensor[:3, :, 0], directions.float())
    assert [float(channel.unique()) for channel in tensor[3:]] == [0, 0, 1, 1]


def test_trajectories_meet_their_poses_and_turn_evenly_between():
    turns = [pose(x=index, yaw=0.1 * index) for index in range(9)]
    np.testing.assert_allclose(at_latent_rate(np.stack(turns)), np.stack(turns[::4]), atol=1e-14)
    # Twelve poses give three latent frames: the first, the last, and halfway between two poses.
    turns = [pose(x=index, yaw=0.1 * index) for index in range(12)]
    middle = at_latent_rate(np.stack(turns))[1]
    np.testing.assert_allclose(middle, pose(x=5.5, yaw=0.55), atol=1e-14)
    np.testing.assert_array_equal(at_latent_rate(np.stack(turns[:1])), np.stack(turns[:1]))
