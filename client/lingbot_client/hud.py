"""The keys that a chunk was made with, on a border below its frames."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

KEYS = "wasdijkl"
_MIN_HEIGHT = 16
_BACKGROUND, _IDLE, _PRESSED = (24, 24, 24), (96, 96, 96), (255, 208, 64)


def with_keys(frames: NDArray[np.uint8], keys: str | None) -> NDArray[np.uint8]:
    """Frames [n, H, W, 3] with a border below them on which the pressed `keys` shine.

    A chunk made from poses, whose keys are None, says so instead.
    """
    border = key_border(keys, frames.shape[2], frames.shape[1])
    below = np.broadcast_to(border, (len(frames), *border.shape))
    return np.concatenate((frames, below), axis=1)


def key_border(keys: str | None, width: int, height: int) -> NDArray[np.uint8]:
    """The border [h, width, 3] for frames of `height`; h is even, as video formats want it."""
    tall = max(_MIN_HEIGHT, height // 20 * 2)
    border = Image.new("RGB", (width, tall), _BACKGROUND)
    draw = ImageDraw.Draw(border)
    font = ImageFont.load_default(tall - 4)
    labels = [(key.upper(), key in keys) for key in KEYS] if keys is not None else [("poses", True)]
    for place, (label, pressed) in enumerate(labels):
        centre = ((place + 0.5) * width / len(labels), tall / 2)
        draw.text(centre, label, fill=_PRESSED if pressed else _IDLE, font=font, anchor="mm")
    return np.asarray(border)
