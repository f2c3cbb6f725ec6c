"""What is measured of the tiny world's weights, each against the renderer along the same keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from lingbot_tools.regression.play import Stages
from lingbot_tools.tiny_world import figures
from lingbot_tools.tiny_world.figures import Frames
from lingbot_tools.tiny_world.playing import Player, chunk_frames, reconstruct, truth_of
from lingbot_tools.tiny_world.scene import Scene
from lingbot_tools.tiny_world.walk import CLEARANCE, follow, opposite, stroll
from lingbot_triton.options import SessionOptions

CHUNKS = 6
LONG_CHUNKS = 30
LONG_OPTIONS = SessionOptions(kv_window_frames=12, kv_sink_frames=3)
_LATE_CHUNKS = 5
_TURNS = ("l", "j", "j", "l", "l", "j")
_KEYS = ("", "w", "s", "a", "d", "j", "l", "i", "k")


@dataclass(frozen=True)
class Walked:
    """One scene along the same keys, as it is and as the network sees it."""

    keys: tuple[str, ...]
    """Of each chunk."""
    truth: Frames
    generated: Frames


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
        long = number < extent.long_scenes
        player = Player(stages, Scene.sample(number), LONG_CHUNKS if long else CHUNKS)
        walked = _fidelity(player, number, values)
        if number < extent.on_sheet:
            values.walks.append(walked)
        _turning(player, values)
        _walking(player, values)
        if number < extent.key_scenes:
            _standing(player, values)
        if long:
            _lasting(player, number, values)
        on_scene(number)
    return values


def _fidelity(player: Player, number: int, values: Values) -> Walked:
    keys = stroll(player.scene, CHUNKS, number).keys
    truth, film = truth_of(player.scene, keys), player.play(keys)
    for measured, frames in (
        (values.reconstruction, reconstruct(player.stages, truth)),
        (values.generated, film),
        (values.other_keys, player.play(opposite(keys))),
        (values.frozen, np.repeat(truth[:1], len(truth), 0)),
    ):
        measured.append(figures.psnr(frames, truth))
    return Walked(keys, truth, film)


def _turning(player: Player, values: Values) -> None:
    film = player.play(_TURNS)
    for chunk, held in enumerate(_TURNS):
        moved = figures.turn_of(_with_frame_before(film, chunk))
        values.turned_right.append(moved < 0 if held == "l" else moved > 0)


def _walking(player: Player, values: Values) -> None:
    """As far ahead as nothing stands in the way, at most three chunks."""
    keys: tuple[str, ...] = ("w",)
    while len(keys) < 3 and player.scene.clearance(follow((*keys, "w")).video) > CLEARANCE:
        keys = (*keys, "w")
    for film, enlarged in (
        (player.play(keys), values.enlarged),
        (truth_of(player.scene, keys), values.enlarged_in_truth),
    ):
        for chunk in range(len(keys)):
            first, *_, last = figures.grey(_with_frame_before(film, chunk))
            enlarged.append(figures.zoom_of(first, last) > 1)


def _standing(player: Player, values: Values) -> None:
    for held in _KEYS:
        change = figures.change_of(_with_frame_before(player.play(("j", held)), 1))
        values.changes.setdefault(held, []).append(change)


def _lasting(player: Player, number: int, values: Values) -> None:
    keys = stroll(player.scene, LONG_CHUNKS, number + 500).keys
    late = slice(chunk_frames(LONG_CHUNKS - _LATE_CHUNKS).start, None)
    film = player.play(keys, LONG_OPTIONS)[late]
    truth = truth_of(player.scene, keys)[late]
    values.sharpness.append(figures.sharpness(film) / figures.sharpness(truth))
    (mean, spread), (true_mean, true_spread) = figures.colours(film), figures.colours(truth)
    values.colour_shift.append(float(np.abs(mean - true_mean).max()))
    values.contrast.append(float(spread.mean() / true_spread.mean()))


def _with_frame_before(film: Frames, chunk: int) -> Frames:
    part = chunk_frames(chunk)
    return film[max(part.start - 1, 0) : part.stop]
