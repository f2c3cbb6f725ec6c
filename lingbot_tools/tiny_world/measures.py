"""What is measured of the tiny world's weights, each against the renderer along the same keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from lingbot_tools.regression.stages import Stages
from lingbot_tools.tiny_world import figures
from lingbot_tools.tiny_world.figures import Frames
from lingbot_tools.tiny_world.playing import (
    Conditions,
    chunk_frames,
    play,
    reconstruct,
    truth_of,
)
from lingbot_tools.tiny_world.scene import Scene
from lingbot_tools.tiny_world.sheet import Walked
from lingbot_tools.tiny_world.walk import follow, opposite, stroll
from lingbot_triton.options import SessionOptions

CHUNKS = 6
LONG_CHUNKS = 30
LONG_OPTIONS = SessionOptions(kv_window_frames=12, kv_sink_frames=3)
_LATE_CHUNKS = 5
_TURNS = ("l", "j", "j", "l", "l", "j")
_KEYS = ("", "w", "s", "a", "d", "j", "l", "i", "k")
_CLEARANCE = 0.15


@dataclass
class Values:
    """Lists with one value per scene, chunk or key, as the names say."""

    reconstruction: list[float] = field(default_factory=list)
    generated: list[float] = field(default_factory=list)
    frozen: list[float] = field(default_factory=list)
    other_keys: list[float] = field(default_factory=list)
    turned_right: list[bool] = field(default_factory=list)
    enlarged: list[bool] = field(default_factory=list)
    enlarged_in_truth: list[bool] = field(default_factory=list)
    changes: dict[str, list[float]] = field(default_factory=dict)
    """Mean change within a chunk, by the key held."""
    sharpness: list[float] = field(default_factory=list)
    """Of the last chunks of long sessions, over the truth's."""
    colour_shift: list[float] = field(default_factory=list)
    """Largest difference of a channel's mean from the truth's, of 255."""
    contrast: list[float] = field(default_factory=list)
    """Deviation of all channels over the truth's."""
    walks: list[Walked] = field(default_factory=list)
    """Of the scenes on the sheet."""


@dataclass(frozen=True)
class Extent:
    """How many scenes each measurement takes."""

    scenes: int = 32
    key_scenes: int = 8
    long_scenes: int = 4
    on_sheet: int = 8


def measure(stages: Stages, extent: Extent, on_scene: Callable[[int], None]) -> Values:
    """Everything but real time; scene numbers are those that training never saw."""
    values = Values()
    for number in range(extent.scenes):
        scene = Scene.sample(number)
        picture = truth_of(scene, ("",))[0]
        long = number < extent.long_scenes
        conditions = Conditions.of(stages, picture, LONG_CHUNKS if long else CHUNKS)
        walked = _fidelity(stages, scene, conditions, number, values)
        if number < extent.on_sheet:
            values.walks.append(walked)
        _turning(stages, scene, conditions, values)
        _walking(stages, scene, conditions, values)
        if number < extent.key_scenes:
            _standing(stages, scene, conditions, values)
        if long:
            _lasting(stages, scene, conditions, number, values)
        on_scene(number)
    return values


def _fidelity(
    stages: Stages, scene: Scene, conditions: Conditions, number: int, values: Values
) -> Walked:
    keys = stroll(scene, CHUNKS, number).keys
    truth = truth_of(scene, keys)
    film = play(stages, scene, conditions, keys)
    other = play(stages, scene, conditions, opposite(keys))
    values.reconstruction.append(figures.psnr(reconstruct(stages, truth), truth))
    values.generated.append(figures.psnr(film, truth))
    values.other_keys.append(figures.psnr(other, truth))
    values.frozen.append(figures.psnr(np.repeat(truth[:1], len(truth), 0), truth))
    return Walked(keys, truth, film)


def _turning(stages: Stages, scene: Scene, conditions: Conditions, values: Values) -> None:
    film = play(stages, scene, conditions, _TURNS)
    for chunk, held in enumerate(_TURNS):
        moved = figures.turn_of(_with_frame_before(film, chunk))
        values.turned_right.append(moved < 0 if held == "l" else moved > 0)


def _walking(stages: Stages, scene: Scene, conditions: Conditions, values: Values) -> None:
    """As far ahead as nothing stands in the way, at most three chunks."""
    keys: tuple[str, ...] = ("w",)
    while len(keys) < 3 and scene.clearance(follow((*keys, "w")).video) > _CLEARANCE:
        keys = (*keys, "w")
    for film, told in (
        (play(stages, scene, conditions, keys), values.enlarged),
        (truth_of(scene, keys), values.enlarged_in_truth),
    ):
        for chunk in range(len(keys)):
            part = figures.grey(_with_frame_before(film, chunk))
            told.append(figures.zoom_of(part[0], part[-1]) > 1)


def _standing(stages: Stages, scene: Scene, conditions: Conditions, values: Values) -> None:
    for held in _KEYS:
        film = play(stages, scene, conditions, ("j", held))
        change = figures.change_of(_with_frame_before(film, 1))
        values.changes.setdefault(held, []).append(change)


def _lasting(
    stages: Stages, scene: Scene, conditions: Conditions, number: int, values: Values
) -> None:
    keys = stroll(scene, LONG_CHUNKS, number + 500).keys
    late = slice(chunk_frames(LONG_CHUNKS - _LATE_CHUNKS).start, None)
    film = play(stages, scene, conditions, keys, LONG_OPTIONS)[late]
    truth = truth_of(scene, keys)[late]
    values.sharpness.append(figures.sharpness(film) / figures.sharpness(truth))
    (mean, spread), (true_mean, true_spread) = figures.colours(film), figures.colours(truth)
    values.colour_shift.append(float(np.abs(mean - true_mean).max()))
    values.contrast.append(float(spread.mean() / true_spread.mean()))


def _with_frame_before(film: Frames, chunk: int) -> Frames:
    part = chunk_frames(chunk)
    return film[max(part.start - 1, 0) : part.stop]
