"""How films compare: fidelity, motion and sharpness. Frames are uint8 [n, H, W, 3]."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

Frames = NDArray[np.uint8]

_ZOOMS = np.exp(np.linspace(-0.35, 0.35, 29))


def psnr(mine: Frames, truth: Frames) -> float:
    """Of all frames together, in dB."""
    error = float(((mine.astype(np.float64) - truth) ** 2).mean())
    return 10 * math.log10(255**2 / max(error, 1e-9))


def grey(frames: Frames) -> NDArray[np.float64]:
    mean: NDArray[np.float64] = frames.astype(np.float64).mean(axis=-1) / 255
    return mean


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
    picture, still = torch.from_numpy(before)[None, None], torch.eye(2, 3, dtype=torch.float64)
    errors = []
    for zoom in _ZOOMS:
        places = functional.affine_grid(still[None] / zoom, [1, 1, height, width], True)
        enlarged = functional.grid_sample(picture, places, align_corners=True)[0, 0].numpy()
        errors.append(np.abs(enlarged - after)[middle].mean())
    return float(_ZOOMS[int(np.argmin(errors))])


def change_of(frames: Frames) -> float:
    """Mean absolute difference from the first frame to the last, in grey levels."""
    return float(np.abs(frames[-1].astype(np.float64) - frames[0]).mean())


def sharpness(frames: Frames) -> float:
    """Mean size of the grey gradient, the more the sharper."""
    pictures = grey(frames)
    return float(sum(np.abs(np.diff(pictures, axis=axis)).mean() for axis in (2, 1)))
