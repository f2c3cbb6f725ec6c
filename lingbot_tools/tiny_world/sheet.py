"""What was generated beside the truth, with the keys: as a sheet, and as an animation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from lingbot_client.hud import key_border
from lingbot_client.video import FRAMES_PER_SECOND
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from lingbot_tools.tiny_world.figures import Frames
from lingbot_tools.tiny_world.playing import chunk_frames

SCALE = 2
_GAP = 4
_PAPER, _INK = (255, 255, 255), (40, 40, 40)
_LABEL_WIDTH = 76
_QUALITY = 80


@dataclass(frozen=True)
class Walked:
    """One scene along the same keys, as it is and as the network sees it."""

    keys: tuple[str, ...]
    """Of each chunk."""
    truth: Frames
    generated: Frames


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
    pictures = []
    for walk in walks:
        for chunk, held in enumerate(walk.keys):
            part = chunk_frames(chunk)
            for true, generated in zip(walk.truth[part], walk.generated[part], strict=True):
                pictures.append(_side_by_side(true, generated, held))
    first, *rest = pictures
    first.save(
        path,
        save_all=True,
        append_images=rest,
        duration=round(1000 / FRAMES_PER_SECOND),
        loop=0,
        quality=_QUALITY,
    )


def _side_by_side(true: NDArray[np.uint8], generated: NDArray[np.uint8], keys: str) -> Image.Image:
    left, right = _enlarged(true), _enlarged(generated)
    width, height = left.width * 2 + _GAP, left.height
    border = Image.fromarray(key_border(keys, width, height))
    picture = Image.new("RGB", (width, height + border.height), _PAPER)
    for part, place in ((left, (0, 0)), (right, (left.width + _GAP, 0)), (border, (0, height))):
        picture.paste(part, place)
    return picture


def _enlarged(frame: NDArray[np.uint8]) -> Image.Image:
    picture = Image.fromarray(frame)
    return picture.resize((SCALE * picture.width, SCALE * picture.height), Image.Resampling.BICUBIC)
