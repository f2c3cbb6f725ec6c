"""What was measured, against what is wanted of it, and what was generated beside the truth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from lingbot_client.hud import key_border
from lingbot_client.video import FRAMES_PER_SECOND
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from rich.table import Table

from lingbot_tools.tiny_world.measures import Values, Walked
from lingbot_tools.tiny_world.playing import chunk_frames

SCALE = 2
_GAP = 4
_PAPER, _INK = (255, 255, 255), (40, 40, 40)
_LABEL_WIDTH = 76


@dataclass(frozen=True)
class Wanted:
    """One figure and its bar."""

    name: str
    value: float
    low: float = -math.inf
    high: float = math.inf

    @property
    def met(self) -> bool:
        return self._met(self.value)

    def _met(self, value: float) -> bool:
        return self.low <= value <= self.high  # NaN never is

    @property
    def shown(self) -> str:
        """The value to three digits, or to as many as show whether the bar is met."""
        texts = [f"{self.value:.{digits}g}" for digits in range(3, 18)]
        return next((text for text in texts if self._met(float(text)) == self.met), texts[0])

    @property
    def wanted(self) -> str:
        if math.isinf(self.low):
            return f"≤ {self.high:g}"
        return f"≥ {self.low:g}" if math.isinf(self.high) else f"{self.low:g} to {self.high:g}"

    def to_json(self) -> dict[str, Any]:
        """Without the bounds themselves: JSON knows no infinity."""
        names = ("name", "value", "shown", "wanted", "met")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class RealTime:
    """Through the whole server, in seconds."""

    period: float
    first_frames: float


def judge(values: Values, real_time: RealTime | None) -> list[Wanted]:
    """All figures; real time is left out where it was not measured."""
    generated = _mean(values.generated)
    least_change = min(_mean(changes) for key, changes in values.changes.items() if key)
    still = _mean(values.changes[""]) / least_change
    sharpness, contrast = values.sharpness, values.contrast
    rows = [
        Wanted("VAE reconstruction, PSNR in dB", _mean(values.reconstruction), 26),
        Wanted("generated over the frozen first frame, dB", generated - _mean(values.frozen), 3),
        Wanted("generated over other keys, dB", generated - _mean(values.other_keys), 3),
        Wanted("turns that go the right way", _mean(values.turned_right), 0.95),
        Wanted("forward chunks that enlarge", _mean(values.enlarged), 0.9),
        Wanted("change standing still, of the least of any key", still, high=0.95),
        Wanted("sharpness after 30 chunks, of the truth's, least", min(sharpness), 0.6, 1.4),
        Wanted("sharpness after 30 chunks, of the truth's, most", max(sharpness), 0.6, 1.4),
        Wanted("contrast after 30 chunks, of the truth's, least", min(contrast), 0.7, 1.3),
        Wanted("contrast after 30 chunks, of the truth's, most", max(contrast), 0.7, 1.3),
        Wanted("colour shift after 30 chunks, of 255", max(values.colour_shift), high=20),
    ]
    if real_time is not None:  # a chunk is 0.75 s of video
        rows.append(Wanted("chunk period, s", real_time.period, high=0.75))
        rows.append(Wanted("first frames, s", real_time.first_frames, high=0.4))
    return rows


def table(rows: Sequence[Wanted]) -> Table:
    drawn = Table("measure", "value", "wanted", "")
    for row in rows:
        drawn.add_row(row.name, row.shown, row.wanted, "met" if row.met else "NOT MET")
    return drawn


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def write_sheet(path: Path, walks: Sequence[Walked]) -> None:
    """For each scene the keys of every chunk above its last frame, truth first, then generated."""
    height, width = (SCALE * side for side in walks[0].truth.shape[1:3])
    columns = 1 + max(len(walk.keys) for walk in walks)
    border = key_border("", width, height).shape[0]
    row = border + 2 * (height + _GAP) + 2 * _GAP
    size = (_LABEL_WIDTH + columns * (width + _GAP), row * len(walks))
    sheet = Image.new("RGB", size, _PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    for number, walk in enumerate(walks):
        top = number * row
        for line, (name, film) in enumerate((("truth", walk.truth), ("generated", walk.generated))):
            upper = top + border + line * (height + _GAP)
            draw.text((_GAP, upper + height // 2), name, _INK, font, "lm")
            sheet.paste(_enlarged(film[0]), (_LABEL_WIDTH, upper))
            for chunk, held in enumerate(walk.keys):
                left = _LABEL_WIDTH + (chunk + 1) * (width + _GAP)
                sheet.paste(Image.fromarray(key_border(held, width, height)), (left, top))
                sheet.paste(_enlarged(film[chunk_frames(chunk).stop - 1]), (left, upper))
    sheet.save(path, optimize=True)


def write_animation(path: Path, walks: Sequence[Walked]) -> None:
    """All scenes one after another, truth left and generated right, the keys below; a WebP."""
    pictures = [
        _side_by_side(walk.truth[frame], walk.generated[frame], held)
        for walk in walks
        for chunk, held in enumerate(walk.keys)
        for frame in range(chunk_frames(chunk).start, chunk_frames(chunk).stop)
    ]
    duration = round(1000 / FRAMES_PER_SECOND)
    pictures[0].save(
        path, save_all=True, append_images=pictures[1:], duration=duration, loop=0, quality=80
    )


def _side_by_side(true: NDArray[np.uint8], generated: NDArray[np.uint8], keys: str) -> Image.Image:
    left, right = _enlarged(true), _enlarged(generated)
    width, height = left.width * 2 + _GAP, left.height
    border = Image.fromarray(key_border(keys, width, height))
    picture = Image.new("RGB", (width, height + border.height), _PAPER)
    picture.paste(left, (0, 0))
    picture.paste(right, (left.width + _GAP, 0))
    picture.paste(border, (0, height))
    return picture


def _enlarged(frame: NDArray[np.uint8]) -> Image.Image:
    picture = Image.fromarray(frame)
    return picture.resize((SCALE * picture.width, SCALE * picture.height), Image.Resampling.BICUBIC)
