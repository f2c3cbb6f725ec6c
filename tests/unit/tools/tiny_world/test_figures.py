from __future__ import annotations

import numpy as np
import pytest

from lingbot_tools.tiny_world import measures
from lingbot_tools.tiny_world.renderer import render
from lingbot_tools.tiny_world.scene import Scene, follow, stroll

SCENES = range(12)


def film(scene: int, keys: str) -> measures.Frames:
    return render(Scene(scene), follow((keys,)).video)


def test_psnr_of_a_known_error() -> None:
    black = np.zeros((2, 4, 4, 3), np.uint8)
    assert measures.psnr(black + 25, black) == pytest.approx(20 * np.log10(255 / 25))


@pytest.mark.parametrize(("keys", "sign"), [("l", -1), ("j", 1)])
def test_turns_are_told_from_the_renderers_films(keys: str, sign: int) -> None:
    right = [measures.turn_of(film(scene, keys)) * sign > 0 for scene in SCENES]
    assert np.mean(right) == 1


def test_walking_forward_is_told_from_the_renderers_films() -> None:
    for keys, larger in (("w", True), ("s", False)):
        told = []
        for scene in SCENES:
            first, *_, last = measures.grey(film(scene, keys))
            told.append((measures.zoom_of(first, last) > 1) == larger)
        assert np.mean(told) >= 0.9


def test_the_zoom_of_an_enlarged_picture() -> None:
    rows, columns = np.mgrid[0:64, 0:96]
    before = np.sin((rows - 31.5) / 7) * np.cos((columns - 47.5) / 9)
    after = np.sin((rows - 31.5) / 8.4) * np.cos((columns - 47.5) / 10.8)
    assert measures.zoom_of(before, after) == pytest.approx(1.2, abs=0.03)


def test_standing_still_changes_nothing_and_walking_something() -> None:
    assert measures.change_of(film(1, "")) == 0
    assert measures.change_of(film(1, "w")) > 1


def test_blur_is_less_sharp_and_noise_is_more() -> None:
    frames = render(Scene(2), stroll(Scene(2), 1, 2).video)
    blurred = ((frames.astype(int) + np.roll(frames, 1, 2) + np.roll(frames, 2, 2)) // 3).astype(
        np.uint8
    )
    noise = np.random.default_rng(0).integers(0, 40, frames.shape)
    noisy = np.clip(frames.astype(int) + noise, 0, 255).astype(np.uint8)
    assert measures.sharpness(blurred) < measures.sharpness(frames) < measures.sharpness(noisy)
