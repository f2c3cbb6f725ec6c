"""The first picture of a world: whatever a person has, as bytes the server reads."""

from __future__ import annotations

import io
import os
from importlib import resources
from pathlib import Path

from PIL import Image, ImageOps, UnidentifiedImageError

from lingbot_client.errors import PictureError

Picture = str | os.PathLike[str] | bytes | Image.Image
"""A path, the bytes of a file, or a Pillow image."""

DEFAULT_PROMPT = "A hall with pink and teal pillars on a checkered yellow floor at noon."

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
    except Exception as error:  # readers of damaged files and their EXIF raise what they like
        raise PictureError(f"{name} is a damaged or unusable picture: {error}") from error


def default_picture(width: int = 480, height: int = 320) -> Image.Image:
    """A hall to start a world from, which `DEFAULT_PROMPT` describes.

    It is a scene of the project's tiny world that its training never saw.
    """
    data = resources.files("lingbot_client").joinpath("start.png").read_bytes()
    with Image.open(io.BytesIO(data)) as image:
        return image.convert("RGB").resize((width, height), Image.Resampling.LANCZOS)


def _read(path: Path) -> tuple[bytes, str]:
    try:
        return path.read_bytes(), str(path)
    except OSError as error:
        raise PictureError(f"cannot read picture {path}: {error.strerror}") from error


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    upright = ImageOps.exif_transpose(image)
    if not upright.mode.startswith("I"):  # Pillow clips 16-bit values instead of scaling them
        upright = upright.convert("RGB")
    upright.save(buffer, "PNG")
    return buffer.getvalue()
