from __future__ import annotations

import numpy as np
import pytest

from lingbot_tools.tiny_world.scene import Scene, follow, opposite, stroll, vocabulary
from lingbot_triton.options import SessionOptions
from lingbot_triton.world.camera import Camera
from lingbot_triton.world.geometry import TEMPORAL_STRIDE


def test_a_walk_is_what_the_service_integrates_at_both_rates() -> None:
    keys = ("w", "wl", "", "ai")
    walk = follow(keys)
    camera, options = Camera(3), SessionOptions()
    expected = np.concatenate([camera.follow_keys(held, options) for held in keys])
    assert (walk.latent == expected).all()
    assert len(walk.video) == 9 + 12 * 3
    assert (walk.video[::TEMPORAL_STRIDE] == expected).all()


def test_strolls_repeat_and_keep_clear_of_objects() -> None:
    for seed in range(6):
        scene = Scene(seed)
        walk = stroll(scene, 5, seed)
        assert stroll(scene, 5, seed).keys == walk.keys
        assert scene.clearance(walk.video) > 0.1
    assert stroll(scene, 5, 99).keys != walk.keys


def test_clearance_is_the_distance_from_the_surface() -> None:
    scene = Scene(1)
    x, z = scene.origin
    on_axis = np.linalg.inv(scene.placement)
    pose = np.eye(4)
    pose[:3, 3] = on_axis[:3, :3] @ [scene.spacing - x, 0, 0 - z + scene.radius + 0.5]
    assert scene.clearance(pose[None]) == pytest.approx(0.5)


def test_opposite_keys_lead_back() -> None:
    assert opposite(("w", "wl", "j", "")) == ("s", "sj", "l", "s")


def test_every_word_of_every_prompt_is_in_the_vocabulary() -> None:
    words = set(vocabulary())
    for seed in range(300):
        spoken = Scene(seed).prompt.lower().replace(".", " .").split()
        assert set(spoken) <= words
