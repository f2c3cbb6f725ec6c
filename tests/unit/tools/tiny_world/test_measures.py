"""The measurements on films that are known: the truth itself, and a picture that never moves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lingbot_tools.tiny_world import measures
from lingbot_tools.tiny_world.evaluate import Wanted, judge, table, write_animation, write_sheet
from lingbot_tools.tiny_world.measures import Frames, Values, Walked, measure, truth_of
from lingbot_tools.tiny_world.scene import Scene

TRUTHS: dict[tuple[object, ...], Frames] = {}


def truth_once(scene: Scene, keys: tuple[str, ...]) -> Frames:
    """Rendered the first time only: all tests here walk the same ways."""
    walk = (scene.origin, keys)
    if walk not in TRUTHS:
        TRUTHS[walk] = truth_of(scene, keys)
    return TRUTHS[walk]


@dataclass
class PerfectPlayer:
    stages: Any
    scene: Scene
    chunks: int

    def play(self, keys: tuple[str, ...], options: Any = None) -> Frames:
        return truth_once(self.scene, keys)


class MotionlessPlayer(PerfectPlayer):
    def play(self, keys: tuple[str, ...], options: Any = None) -> Frames:
        truth = truth_once(self.scene, keys)
        noise = np.random.default_rng(0).integers(0, 60, truth.shape, np.uint8)
        return truth[:1].repeat(len(truth), 0) // 2 + noise


def measured(patch: pytest.MonkeyPatch, player: type[PerfectPlayer]) -> tuple[Values, list[Walked]]:
    patch.setattr(measures, "Player", player)
    patch.setattr(measures, "truth_of", truth_once)
    patch.setattr(measures, "LONG_CHUNKS", 6)
    patch.setattr(measures, "KEY_SCENES", 1)
    patch.setattr(measures, "reconstruct", lambda stages, film: film ^ 1)
    return measure(None, range(2), long_scenes=1)  # type: ignore[arg-type]


def test_the_truth_meets_every_bar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    values, walks = measured(monkeypatch, PerfectPlayer)
    values |= {"period": [0.5], "first_frames": [0.2]}
    rows = judge(values)
    assert [row.name for row in rows if not row.met] == []
    assert len(rows) == 13
    write_sheet(tmp_path / "sheet.png", walks)
    with Image.open(tmp_path / "sheet.png") as sheet:
        # Six chunks and the first picture, twice as large; per scene two rows and their keys.
        assert sheet.size == (76 + 7 * (192 + 4), 2 * (16 + 2 * (128 + 4) + 8))
    write_animation(tmp_path / "film.webp", walks)
    with Image.open(tmp_path / "film.webp") as film:
        assert film.n_frames == 2 * (9 + 5 * 12)
        assert film.size == (2 * 192 + 4, 128 + 16)


def test_a_noisy_picture_that_never_moves_meets_none_but_the_vaes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values, _ = measured(monkeypatch, MotionlessPlayer)
    values |= {"period": [0.8], "first_frames": [0.5]}
    rows = judge(values)
    met = {row.name for row in rows if row.met}
    assert "VAE reconstruction, PSNR in dB" in met
    assert not met & {
        "generated over the frozen first frame, dB",
        "generated over other keys, dB",
        "turns that go the right way",
        "forward chunks that enlarge",
        "chunk period, s",
        "first frames, s",
    }
    assert table(rows).count("NOT MET") == len(rows) - len(met)


@pytest.mark.parametrize(
    ("value", "shown"), [(2.9957, "2.996"), (3.0, "3"), (2.8462, "2.85"), (3.7658, "3.77")]
)
def test_no_rounding_makes_a_bar_look_met(value: float, shown: str) -> None:
    assert Wanted("gain, dB", value, low=3).shown == shown
