from __future__ import annotations

import contextlib
import io
from pathlib import Path

import numpy as np
import pytest
from lingbot_client import PictureError
from lingbot_client.picture import DEFAULT_PROMPT, default_picture, encode_picture
from PIL import Image

from lingbot_tools.tiny_world.renderer import render
from lingbot_tools.tiny_world.scene import FIRST_TRAINING_SCENE, Scene

ORIENTATION = 0x0112
ROTATED = 6  # the camera was turned: show it rotated by 90 degrees clockwise


def encode(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def decode(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_a_file_the_server_reads_is_sent_as_it_is(kind: str, tmp_path: Path) -> None:
    data = encode(default_picture(), kind)
    path = tmp_path / "picture"
    path.write_bytes(data)
    assert encode_picture(data) == encode_picture(path) == encode_picture(str(path)) == data


@pytest.mark.parametrize("kind", ["BMP", "GIF"])
def test_any_other_format_becomes_png_with_the_same_pixels(kind: str) -> None:
    image = Image.new("RGB", (8, 4), (255, 0, 0))
    sent = decode(encode_picture(encode(image, kind)))
    assert sent.format == "PNG"
    assert np.array_equal(np.asarray(sent.convert("RGB")), np.asarray(image))


def test_a_pillow_image_becomes_rgb_png() -> None:
    sent = decode(encode_picture(Image.new("RGBA", (8, 4), (1, 2, 3, 255))))
    assert (sent.format, sent.mode, sent.size) == ("PNG", "RGB", (8, 4))
    assert sent.getpixel((0, 0)) == (1, 2, 3)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_a_rotated_picture_is_sent_upright(kind: str) -> None:
    image = default_picture()
    exif = Image.Exif()
    exif[ORIENTATION] = ROTATED
    sent = decode(encode_picture(encode(image, kind, exif=exif, quality=95)))
    assert sent.size == (image.height, image.width)
    assert ORIENTATION not in sent.getexif()
    upright = np.asarray(image.rotate(-90, expand=True), dtype=int)
    assert np.abs(np.asarray(sent.convert("RGB"), dtype=int) - upright).mean() < 8


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PictureError, match=r"nowhere\.png.*No such file"):
        encode_picture(tmp_path / "nowhere.png")


def test_what_is_no_picture_is_named(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a picture")
    with pytest.raises(PictureError, match=r"notes\.txt is not a picture"):
        encode_picture(path)
    with pytest.raises(PictureError, match="these bytes"):
        encode_picture(b"")


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_half_a_picture_is_refused(kind: str) -> None:
    data = encode(default_picture(), kind)
    with pytest.raises(PictureError, match="damaged"):
        encode_picture(data[: len(data) // 2])


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_a_picture_with_damaged_notes_is_refused_and_no_riddle(kind: str) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (32, 32)).save(buffer, kind, exif=b"II*\0\0")
    with contextlib.suppress(PictureError):  # nothing else comes, from any version of Pillow
        assert encode_picture(buffer.getvalue()).startswith((b"\x89PNG", b"RIFF"))


def test_sixteen_bits_of_grey_keep_their_brightness() -> None:
    grey = Image.fromarray(np.full((32, 32), 30_000, np.uint16))
    with Image.open(io.BytesIO(encode_picture(grey))) as sent:
        assert np.asarray(sent).max() == 30_000  # the server scales them


def test_the_default_picture_is_a_scene_of_the_tiny_world_that_no_training_saw() -> None:
    number = 15
    scene = Scene(number)
    assert number < FIRST_TRAINING_SCENE
    assert scene.prompt == DEFAULT_PROMPT
    seen = render(scene, np.eye(4)[None], 480, 320)[0].astype(int)
    assert np.abs(np.asarray(default_picture(), int) - seen).max() <= 1
    assert default_picture(48, 32).size == (48, 32)
