"""What is measured of the tiny world's weights, each against the renderer along the same keys.

Sessions are played on the service's stages in this process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from lingbot_tools.regression.expectations import Expectations, Variant
from lingbot_tools.regression.play import Stages
from lingbot_tools.tiny_world import figures
from lingbot_tools.tiny_world.figures import Frames
from lingbot_tools.tiny_world.renderer import HEIGHT, WIDTH, render
from lingbot_tools.tiny_world.scene import Scene
from lingbot_tools.tiny_world.vae_training import to_pixels
from lingbot_tools.tiny_world.walk import CLEARANCE, chunk_frames, follow, opposite, stroll
from lingbot_triton.options import SessionOptions
from lingbot_triton.settings import Settings
from lingbot_triton.world.geometry import TEMPORAL_STRIDE, Geometry
from lingbot_triton.world.vae import to_uint8

CHUNKS = 6
LONG_CHUNKS = 30
LONG_OPTIONS = SessionOptions(kv_window_frames=12, kv_sink_frames=3)
_LATE_CHUNKS = 5
_TURNS = ("l", "j", "j", "l", "l", "j")
_KEYS = ("", "w", "s", "a", "d", "j", "l", "i", "k")


class Walked(NamedTuple):
    """One scene along the same keys, one entry a chunk: as it is and as the network sees it."""

    keys: tuple[str, ...]
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


def load_stages(checkpoint: Path) -> Stages:
    return Stages.load(Settings(checkpoint=str(checkpoint), device="cpu"))


def truth_of(scene: Scene, keys: tuple[str, ...]) -> Frames:
    """The renderer's frames uint8 [n, H, W, 3] along `keys`, one entry a chunk."""
    return render(scene, follow(keys).video)


class Player:
    """Plays sessions of at most `chunks` chunks that all start from a scene's first picture."""

    def __init__(self, stages: Stages, scene: Scene, chunks: int) -> None:
        self.stages, self.scene = stages, scene
        size = {"height": HEIGHT, "width": WIDTH}
        state = stages.condition.open({"picture": truth_of(scene, ("",))[0]}, size)
        self.conditions = [stages.condition.step(state, {}, {})["condition"] for _ in range(chunks)]

    def play(self, keys: tuple[str, ...], options: SessionOptions | None = None) -> Frames:
        """All frames of a session that holds `keys[i]` in chunk i, uint8 [n, H, W, 3]."""
        session = Expectations(Path(), {}, list(keys), Geometry(HEIGHT, WIDTH))
        variant = Variant("", options or SessionOptions(chunk_count=len(keys)), self.scene.prompt)
        return self.stages.play(session, variant, self.conditions, pieces=1).frames


@torch.inference_mode()
def reconstruct(stages: Stages, film: Frames) -> Frames:
    """What the VAE makes of a film of 4n - 3 frames."""
    encoder, decoder = stages.condition.encoder, stages.decode.decoder
    pixels, encoded, decoded = to_pixels(film), encoder.open(), decoder.open()
    groups = [pixels[:, :1], *torch.split(pixels[:, 1:], TEMPORAL_STRIDE, dim=1)]
    frames = [decoder.decode(decoded, encoder.encode(encoded, group)) for group in groups]
    return np.concatenate([to_uint8(part).numpy() for part in frames])


def measure(stages: Stages, extent: Extent, on_scene: Callable[[int], None]) -> Values:
    """Everything but real time; scene numbers are those that training never saw."""
    values = Values()
    for number in range(extent.scenes):
        long = number < extent.long_scenes
        player = Player(stages, Scene(number), LONG_CHUNKS if long else CHUNKS)
        walked = _fidelity(player, number, values)
        if number < extent.on_sheet:
            values.walks.append(walked)
        film = player.play(_TURNS)
        for chunk, held in enumerate(_TURNS):
            moved = figures.turn_of(_with_frame_before(film, chunk))
            values.turned_right.append(moved < 0 if held == "l" else moved > 0)
        _walking(player, values)
        for held in _KEYS if number < extent.key_scenes else ():
            change = figures.change_of(_with_frame_before(player.play(("j", held)), 1))
            values.changes.setdefault(held, []).append(change)
        if long:
            _lasting(player, number, values)
        on_scene(number)
    return values


def _fidelity(player: Player, number: int, values: Values) -> Walked:
    keys = stroll(player.scene, CHUNKS, number).keys
    truth, film = truth_of(player.scene, keys), player.play(keys)
    values.reconstruction.append(figures.psnr(reconstruct(player.stages, truth), truth))
    values.generated.append(figures.psnr(film, truth))
    values.other_keys.append(figures.psnr(player.play(opposite(keys)), truth))
    values.frozen.append(figures.psnr(np.repeat(truth[:1], len(truth), 0), truth))
    return Walked(keys, truth, film)


def _walking(player: Player, values: Values) -> None:
    """As far ahead as nothing stands in the way, at most three chunks."""
    keys: tuple[str, ...] = ("w",)
    while len(keys) < 3 and player.scene.clearance(follow((*keys, "w")).video) > CLEARANCE:
        keys = (*keys, "w")
    films = player.play(keys), truth_of(player.scene, keys)
    for film, enlarged in zip(films, (values.enlarged, values.enlarged_in_truth), strict=True):
        for chunk in range(len(keys)):
            first, *_, last = figures.grey(_with_frame_before(film, chunk))
            enlarged.append(figures.zoom_of(first, last) > 1)


def _lasting(player: Player, number: int, values: Values) -> None:
    keys = stroll(player.scene, LONG_CHUNKS, number + 500).keys
    late = slice(chunk_frames(LONG_CHUNKS - _LATE_CHUNKS).start, None)
    film, truth = player.play(keys, LONG_OPTIONS)[late], truth_of(player.scene, keys)[late]
    values.sharpness.append(figures.sharpness(film) / figures.sharpness(truth))
    pixels, true_pixels = (frames.reshape(-1, 3).astype(np.float64) for frames in (film, truth))
    values.colour_shift.append(float(np.abs(pixels.mean(0) - true_pixels.mean(0)).max()))
    values.contrast.append(float(pixels.std(0).mean() / true_pixels.std(0).mean()))


def _with_frame_before(film: Frames, chunk: int) -> Frames:
    part = chunk_frames(chunk)
    return film[max(part.start - 1, 0) : part.stop]
