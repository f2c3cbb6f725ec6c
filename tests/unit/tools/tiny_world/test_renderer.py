from __future__ import annotations

from copy import copy

import numpy as np
import pytest
from numpy.typing import NDArray

from lingbot_tools.tiny_world.renderer import HEIGHT, WIDTH, render
from lingbot_tools.tiny_world.scene import EYE_HEIGHT, Scene, follow


def facing_a_pillar(**changes: object) -> Scene:
    """A scene whose only near pillar stands straight ahead of the first pose."""
    scene = Scene(5)
    given = {
        "kind": "plaza",
        "spacing": 3.0,
        "origin": (0.0, -2.0),
        "yaw": 0.0,
        "radius": 0.2,
        "height": 1.0,
        "round": False,
        "fog": 0.0,
        "brightness": 1.0,
        "object_colours": (np.array([1, 0, 0], np.float32),) * 2,
        "floor_colours": (np.array([0, 1, 0], np.float32),) * 2,
        "horizon": np.array([0, 0, 1], np.float32),
        "zenith": np.array([0, 0, 1], np.float32),
        "hill_colour": np.array([0, 0, 1], np.float32),
        "light": np.array([0, -1, 0], np.float32),
    }
    vars(scene).update({**given, **changes})
    return scene


def pillar(frame: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Where the frame is red, of the central pillar only: the others are cut off by nearness."""
    red: NDArray[np.bool_] = (frame[..., 0] > 90) & (frame[..., 1] < 60) & (frame[..., 2] < 60)
    return red


def middle(mask: NDArray[np.bool_]) -> float:
    return float(np.nonzero(mask)[1].mean())


def test_a_pillar_ahead_is_where_the_pinhole_camera_puts_it() -> None:
    mask = pillar(render(facing_a_pillar(), np.eye(4)[None])[0])
    depth = 2.0 - 0.2
    row = mask[HEIGHT // 2]
    near = np.nonzero(row)[0]
    ahead = near[np.abs(near - WIDTH / 2) < 16]
    assert len(ahead) == pytest.approx(2 * 0.2 / depth * WIDTH, abs=1.5)
    assert ahead.mean() + 0.5 == pytest.approx(WIDTH / 2, abs=0.5)
    column = np.nonzero(mask[:, WIDTH // 2])[0]
    assert column.max() + 1 == pytest.approx(HEIGHT / 2 + EYE_HEIGHT / depth * WIDTH, abs=1)


@pytest.mark.parametrize(("key", "sign"), [("l", -1), ("j", 1), ("d", -1), ("a", 1)])
def test_turning_or_stepping_right_moves_what_is_seen_to_the_left(key: str, sign: int) -> None:
    scene = facing_a_pillar()
    frames = render(scene, follow((key,)).video[:5])
    window = slice(WIDTH // 2 - 24, WIDTH // 2 + 24)
    shift = middle(pillar(frames[4])[:, window]) - middle(pillar(frames[0])[:, window])
    assert shift * sign > 2


def test_walking_forward_enlarges_and_backward_shrinks_what_is_ahead() -> None:
    scene = facing_a_pillar()
    window = slice(WIDTH // 2 - 16, WIDTH // 2 + 16)

    def sizes(key: str) -> NDArray[np.int64]:
        frames = render(scene, follow((key,)).video)
        return np.array([pillar(frame)[:, window].sum() for frame in frames])

    growing, shrinking = sizes("w"), sizes("s")
    assert (np.diff(growing) >= 0).all()
    assert growing[-1] > 1.3 * growing[0]
    assert (np.diff(shrinking) <= 0).all()
    assert shrinking[-1] < 0.75 * shrinking[0]


def test_looking_up_lowers_the_floor() -> None:
    frames = render(facing_a_pillar(), follow(("i",)).video)
    green = [(frame[..., 1] > 90).mean() for frame in frames]
    assert green[0] > green[4] > green[8]


def test_a_scene_is_the_same_every_time_and_differs_from_others() -> None:
    walk = follow(("wl",))
    one, again = (render(Scene(7), walk.video) for _ in range(2))
    assert (one == again).all()
    assert (one != render(Scene(8), walk.video)).mean() > 0.5


def test_a_quarter_turn_of_the_session_is_a_quarter_turn_of_the_scene() -> None:
    scene = Scene(3)
    turned = np.eye(4)
    turned[:3, :3] = [[0, 0, 1], [0, 1, 0], [-1, 0, 0]]
    seen = render(scene, turned[None])
    other = copy(scene)
    other.yaw += np.pi / 2
    same = render(other, np.eye(4)[None])
    assert np.abs(seen.astype(int) - same).mean() < 0.1
