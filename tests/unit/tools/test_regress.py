"""Expectations of any size, played through a server."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from lingbot_tools.regression.expectations import ExpectationError
from lingbot_tools.regression.server import area_for
from lingbot_triton.world.geometry import Geometry


def picture(width: int, height: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("width", "height", "of"),
    [(400, 112, (400, 112)), (112, 144, (112, 144)), (96, 64, (480, 330)), (16, 16, (16, 16))],
)
def test_an_area_is_found_at_which_frames_have_the_expected_size(
    width: int, height: int, of: tuple[int, int]
) -> None:
    area = area_for(Geometry(height, width), picture(*of))
    assert Geometry.fit(of[1], of[0], area) == Geometry(height, width)


def test_a_picture_of_another_shape_is_told() -> None:
    with pytest.raises(ExpectationError, match="frames of 96x64 of a picture of 64x96"):
        area_for(Geometry(64, 96), picture(64, 96))
