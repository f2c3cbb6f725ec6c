"""Decoding the picture a session starts from, with every bound checked before memory is taken."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from lingbot_triton.errors import BadRequest
from lingbot_triton.settings import Settings
from lingbot_triton.world.geometry import MIN_SIDE

FORMATS = ("PNG", "JPEG", "WEBP")


def load_picture(data: bytes, settings: Settings) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Decode PNG, JPEG or WebP bytes to RGB uint8 [height, width, 3], upright.

    Grey, palette, 16-bit and transparent pictures are converted; transparency is dropped.
    Raises BadRequest for anything that is not such a picture, truncated, too small or too large.
    """
    if len(data) > settings.max_picture_bytes:
        raise BadRequest(
            f"the image has {len(data)} bytes; at most {settings.max_picture_bytes} are taken"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError:
        raise BadRequest("the image is not a PNG, JPEG or WebP picture") from None
    except Exception as error:  # readers of broken pictures raise what they like
        raise BadRequest(f"the image cannot be read: {error}") from None
    width, height = image.size
    if width * height > settings.max_picture_pixels:
        raise BadRequest(
            f"the image has {width}x{height} pixels; "
            f"at most {settings.max_picture_pixels} are taken"
        )
    if min(width, height) < MIN_SIDE:
        raise BadRequest(
            f"the image has {width}x{height} pixels; each side needs at least {MIN_SIDE}"
        )
    try:
        image.load()
        upright = ImageOps.exif_transpose(image)
    except Exception as error:  # readers of broken pictures and their EXIF raise what they like
        raise BadRequest(f"the image cannot be decoded: {error}") from None
    return np.asarray(_to_rgb(upright))


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        # Pillow clips 16-bit values to 255 instead of scaling them.
        grey = np.asarray(image).astype(np.uint32) * 255 // 65535
        return Image.fromarray(grey.clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode in ("P", "PA", "LA"):
        image = image.convert("RGBA")
    return image.convert("RGB")
