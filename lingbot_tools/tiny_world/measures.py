"""What is measured of the tiny world's weights, each against the renderer along the same keys.

Sessions are played on the service's stages in this process.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from lingbot_tools.regression.expectations import Expectations, Variant
from lingbot_tools.regression.play import Stages
from lingbot_tools.tiny_world.renderer import HEIGHT, WIDTH, render
from lingbot_tools.tiny_world.scene import CLEARANCE, Scene, chunk_frames, follow, opposite, stroll
from lingbot_tools.tiny_world.vae_training import to_pixels
from lingbot_triton.options import SessionOptions
from lingbot_triton.settings import Settings
from lingbot_triton.world.geometry import TEMPORAL_STRIDE, Geometry
from lingbot_triton.world.vae import to_uint8

Frames = NDArray[np.uint8]
"""[n, H, W, 3]"""

CHUNKS = 6
LONG_CHUNKS = 30
LONG_OPTIONS = SessionOptions(kv_window_frames=12, kv_sink_frames=3)
_LATE_CHUNKS = 5
KEY_SCENES, LONG_SCENES, SHEET_SCENES = 8, 4, 8
"""How many scenes have every key tried on them, are walked for long, and are on the sheet."""
_TURNS = ("l", "j", "j", "l", "l", "j")
KEYS = ("", "w", "s", "a", "d", "j", "l", "i", "k")
_ZOOMS = np.exp(np.linspace(-0.35, 0.35, 29))


class Walked(NamedTuple):
    """One scene along the same keys, one entry a chunk: as it is and as the network sees it."""

    keys: tuple[str, ...]
    truth: Frames
    generated: Frames


Values = defaultdict[str, list[float]]
"""By the name of what is measured, one value per scene, chunk or key."""


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


def measure(
    stages: Stages, numbers: Iterable[int], long_scenes: int = LONG_SCENES
) -> tuple[Values, list[Walked]]:
    """Everything but real time, on the scenes with these numbers, and what is on the sheet.

    Those below `FIRST_TRAINING_SCENE` are scenes that training never saw.
    """
    values, walks = Values(list), []
    for number in numbers:
        long = number < long_scenes
        player = Player(stages, Scene(number), LONG_CHUNKS if long else CHUNKS)
        walked = _fidelity(player, number, values)
        if number < SHEET_SCENES:
            walks.append(walked)
        film = player.play(_TURNS)
        for chunk, held in enumerate(_TURNS):
            moved = turn_of(_with_frame_before(film, chunk))
            values["turned_right"].append(moved < 0 if held == "l" else moved > 0)
        _walking(player, values)
        for held in KEYS if number < KEY_SCENES else ():
            change = change_of(_with_frame_before(player.play(("j", held)), 1))
            values[f"change_{held}"].append(change)
        if long:
            _lasting(player, number, values)
    return values, walks


def _fidelity(player: Player, number: int, values: Values) -> Walked:
    keys = stroll(player.scene, CHUNKS, number).keys
    truth, film = truth_of(player.scene, keys), player.play(keys)
    values["reconstruction"].append(psnr(reconstruct(player.stages, truth), truth))
    values["generated"].append(psnr(film, truth))
    values["other_keys"].append(psnr(player.play(opposite(keys)), truth))
    values["frozen"].append(psnr(np.repeat(truth[:1], len(truth), 0), truth))
    return Walked(keys, truth, film)


def _walking(player: Player, values: Values) -> None:
    """As far ahead as nothing stands in the way, at most three chunks."""
    keys: tuple[str, ...] = ("w",)
    while len(keys) < 3 and player.scene.clearance(follow((*keys, "w")).video) > CLEARANCE:
        keys = (*keys, "w")
    films = {"enlarged": player.play(keys), "enlarged_in_truth": truth_of(player.scene, keys)}
    for name, film in films.items():
        for chunk in range(len(keys)):
            first, *_, last = grey(_with_frame_before(film, chunk))
            values[name].append(zoom_of(first, last) > 1)


def _lasting(player: Player, number: int, values: Values) -> None:
    """What is left at the end of a long session, as shares of the truth's, and of 255."""
    keys = stroll(player.scene, LONG_CHUNKS, number + 500).keys
    late = slice(chunk_frames(LONG_CHUNKS - _LATE_CHUNKS).start, None)
    film, truth = player.play(keys, LONG_OPTIONS)[late], truth_of(player.scene, keys)[late]
    values["sharpness"].append(sharpness(film) / sharpness(truth))
    shift = film.mean((0, 1, 2)) - truth.mean((0, 1, 2))
    values["colour_shift"].append(float(np.abs(shift).max()))
    contrast, true_contrast = (frames.std((0, 1, 2)).mean() for frames in (film, truth))
    values["contrast"].append(float(contrast / true_contrast))


def _with_frame_before(film: Frames, chunk: int) -> Frames:
    part = chunk_frames(chunk)
    return film[max(part.start - 1, 0) : part.stop]


def psnr(mine: Frames, truth: Frames) -> float:
    """Of all frames together, in dB."""
    error = float(((mine.astype(np.float64) - truth) ** 2).mean())
    return 10 * math.log10(255**2 / max(error, 1e-9))


def grey(frames: Frames) -> NDArray[np.float64]:
    pictures: NDArray[np.float64] = frames.mean(axis=-1) / 255
    return pictures


def turn_of(frames: Frames) -> float:
    """Pixels to the right from each frame to the next, by phase correlation, over all of them."""
    height, width = frames.shape[1:3]
    window = np.outer(np.hanning(height), np.hanning(width))
    spectra = [np.fft.rfft2((picture - picture.mean()) * window) for picture in grey(frames)]
    moved = 0
    for before, after in pairwise(spectra):
        product = np.conj(before) * after
        peaks = np.fft.irfft2(product / (np.abs(product) + 1e-9), (height, width))
        column = int(peaks.argmax()) % width
        moved += column - width if column > width // 2 else column
    return float(moved)


def zoom_of(before: NDArray[np.float64], after: NDArray[np.float64]) -> float:
    """The factor by which the middle of `before` must be enlarged to look most like `after`."""
    height, width = before.shape
    rows, columns = np.mgrid[0:height, 0:width]
    y, x = rows - (height - 1) / 2, columns - (width - 1) / 2
    middle = (np.abs(y) < height / 3) & (np.abs(x) < width / 3)
    zooms = torch.eye(2, 3, dtype=torch.float64) / torch.from_numpy(_ZOOMS).view(-1, 1, 1)
    places = functional.affine_grid(zooms, [len(_ZOOMS), 1, height, width], True)
    picture = torch.from_numpy(before).expand(len(_ZOOMS), 1, height, width)
    enlarged = functional.grid_sample(picture, places, align_corners=True)[:, 0].numpy()
    errors = np.abs(enlarged - after)[:, middle].mean(axis=1)
    return float(_ZOOMS[errors.argmin()])


def change_of(frames: Frames) -> float:
    """Mean absolute difference from the first frame to the last, in grey levels."""
    return float(np.abs(frames[-1].astype(np.float64) - frames[0]).mean())


def sharpness(frames: Frames) -> float:
    """Mean size of the grey gradient, the more the sharper."""
    pictures = grey(frames)
    return float(sum(np.abs(np.diff(pictures, axis=axis)).mean() for axis in (2, 1)))
