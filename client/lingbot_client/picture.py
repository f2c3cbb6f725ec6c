"""The first picture of a world: whatever a person has, as bytes the server reads."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from lingbot_client.errors import PictureError

Picture = str | os.PathLike[str] | bytes | Image.Image
"""A path, the bytes of a file, or a Pillow image."""

SERVED_FORMATS = ("PNG", "JPEG", "WEBP")
"""What the server reads."""

_EXIF_ORIENTATION = 0x0112
_UPRIGHT = 1


def encode_picture(picture: Picture) -> bytes:
    """A picture as PNG, JPEG or WebP bytes, upright.

    A file that is all this already is sent as it is; anything else Pillow reads becomes PNG, and
    the camera's note about its orientation is carried out. Raises PictureError.
    """
    if isinstance(picture, Image.Image):
        return _png(picture)
    data, name = (picture, "these bytes") if isinstance(picture, bytes) else _read(Path(picture))
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.load()
            upright = image.getexif().get(_EXIF_ORIENTATION, _UPRIGHT) == _UPRIGHT
            return data if upright and image.format in SERVED_FORMATS else _png(image)
    except UnidentifiedImageError:
        raise PictureError(f"{name} is not a picture in a known format") from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise PictureError(f"{name} is a damaged or unusable picture: {error}") from error


def default_picture(width: int = 96, height: int = 64) -> Image.Image:
    """A plain landscape to start a world from: sky, sun, hills and a field, always the same."""
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]  # both [height, width]
    horizon = 0.55 + 0.06 * np.sin(7 * x) + 0.03 * np.sin(17 * x + 1)
    sky = _blend((70, 120, 200), (250, 220, 180), y / 0.6)
    field = _blend((110, 150, 80), (40, 90, 40), (y - 0.5) * 2)
    furrows = 1 - 0.15 * (np.sin(30 * (x - 0.5) / (y + 0.05)) > 0)
    pixels = np.where((y < horizon)[..., None], sky, field * furrows[..., None])
    sun = (x - 0.7) ** 2 + ((y - 0.25) * height / width) ** 2 < 0.06**2
    pixels[sun] = (255, 245, 210)
    return Image.fromarray(pixels.astype(np.uint8))


def _read(path: Path) -> tuple[bytes, str]:
    try:
        return path.read_bytes(), str(path)
    except OSError as error:
        raise PictureError(f"cannot read picture {path}: {error.strerror}") from error


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    ImageOps.exif_transpose(image).convert("RGB").save(buffer, "PNG")
    return buffer.getvalue()


def _blend(
    start: tuple[int, int, int], end: tuple[int, int, int], amount: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Colours [height, width, 3] between two, for amounts [height, width] from 0 to 1."""
    share = np.clip(amount, 0, 1)[..., None]
    colours: NDArray[np.float64] = np.asarray(start) * (1 - share) + np.asarray(end) * share
    return colours
