"""The keys on a border below a chunk's frames."""

from __future__ import annotations

import numpy as np
import pytest
from lingbot_client.hud import KEYS, key_border, with_keys


def bright(border: np.ndarray, place: int) -> int:
    """The strongest red in the place of one key."""
    width = border.shape[1] / len(KEYS)
    return int(border[:, round(place * width) : round((place + 1) * width), 0].max())


@pytest.mark.parametrize(("width", "height"), [(96, 64), (832, 464)])
@pytest.mark.parametrize("keys", ["", "w", "wl", KEYS])
def test_exactly_the_held_keys_shine(keys: str, width: int, height: int) -> None:
    border = key_border(keys, width, height)
    assert border.shape[1:] == (width, 3)
    assert border.shape[0] % 2 == 0
    assert [bright(border, place) > 150 for place in range(8)] == [key in keys for key in KEYS]
    assert min(bright(border, place) for place in range(8)) > 60, "all are written"


def test_the_border_is_below_frames_that_stay_as_they_were() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (3, 64, 96, 3), dtype=np.uint8)
    shown = with_keys(frames, "w")
    assert (shown[:, :64] == frames).all()
    assert (shown[:, 64:] == key_border("w", 96, 64)).all()


def test_poses_are_called_so() -> None:
    border = key_border(None, 96, 64)
    assert border.max() > 150
    assert (border != key_border("", 96, 64)).any()
