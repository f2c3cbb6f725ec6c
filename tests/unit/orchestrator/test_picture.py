"""Every kind of picture is read upright as RGB, and what is none is refused in one sentence."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lingbot_triton.errors import BadRequest
from lingbot_triton.orchestrator.picture import load_picture
from lingbot_triton.settings import Settings


def picture(width: int = 96, height: int = 64) -> Image.Image:
    """A picture with something in it: two gradients."""
    y, x = np.mgrid[0:height, 0:width]
    rgb = np.stack([x * 255 // width, y * 255 // height, (x + y) % 256], -1)
    return Image.fromarray(rgb.astype(np.uint8))


def encoded(image: Image.Image, kind: str = "PNG", **parameters: Any) -> bytes:
    data = io.BytesIO()
    image.save(data, kind, **parameters)
    return data.getvalue()


def _blank(width: int, height: int) -> bytes:
    return encoded(Image.new("1", (width, height)))


BAD: dict[str, tuple[bytes, str]] = {
    "truncated": (encoded(picture())[:-100], "cannot be decoded"),
    "1x1": (_blank(1, 1), "has 1x1 pixels; each side needs at least 16"),
    "12000x9000": (_blank(12000, 9000), "has 12000x9000 pixels; at most 40000000"),
    "15x9000": (_blank(15, 9000), "each side needs at least 16"),
    "text": (b"this is not a picture", "not a PNG, JPEG or WebP"),
    "other format": (encoded(picture(), "GIF"), "not a PNG, JPEG or WebP"),
    "17 MiB": (bytes(17 * 2**20), "bytes; at most 16777216 are taken"),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_picture_to_start_from_is_refused(kind: str) -> None:
    data, sentence = BAD[kind]
    with pytest.raises(BadRequest, match=r"the image .*") as caught:
        load_picture(data, Settings())
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def _sixteen_bit() -> tuple[bytes, np.ndarray[Any, Any]]:
    grey = (np.arange(96 * 64, dtype=np.uint32) * 10 % 65536).astype(np.uint16).reshape(64, 96)
    return encoded(Image.fromarray(grey)), (grey.astype(np.uint32) * 255 // 65535)[..., None]


def _turned() -> bytes:
    """A JPEG whose EXIF says that it is to be shown turned by 90 degrees."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(picture(64, 96), "JPEG", exif=exif.tobytes())


RGB = np.asarray(picture())
GREY = np.asarray(picture().convert("L"))[..., None]
GOOD: dict[str, tuple[bytes, np.ndarray[Any, Any], int]] = {
    # bytes, what they show, by how much a lossy format may be off
    "RGB": (encoded(picture()), RGB, 0),
    "grey": (encoded(picture().convert("L")), GREY, 0),
    "palette": (
        encoded(picture().convert("P")),
        np.asarray(picture().convert("P").convert("RGB")),
        0,
    ),
    "RGBA": (encoded(picture().convert("RGBA")), RGB, 0),
    "grey alpha": (encoded(picture().convert("LA")), GREY, 0),
    "bilevel": (
        encoded(picture().convert("1")),
        np.asarray(picture().convert("1").convert("RGB")),
        0,
    ),
    "16 bit": (*_sixteen_bit(), 0),
    "JPEG": (encoded(picture(), "JPEG", quality=95), RGB, 90),
    "WebP": (encoded(picture(), "WEBP", quality=95), RGB, 90),
    "turned": (_turned(), np.rot90(np.asarray(picture(64, 96)), -1), 90),
}


@pytest.mark.parametrize("kind", GOOD)
def test_every_kind_of_picture_is_read_upright(kind: str) -> None:
    data, expected, tolerance = GOOD[kind]
    read = load_picture(data, Settings())
    assert (read.shape, read.dtype) == ((64, 96, 3), np.uint8)
    off = np.abs(read.astype(int) - expected)
    assert off.max() <= tolerance
    assert off.mean() <= tolerance / 10
