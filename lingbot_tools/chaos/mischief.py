"""Requests that cannot be understood, and sessions that cannot be opened."""

from __future__ import annotations

from typing import Any

import numpy as np
from lingbot_client.picture import encode_picture
from PIL import Image

AREA = 32 * 48
IMAGE = encode_picture(Image.new("RGB", (48, 32), (90, 120, 60)))
OPENING: dict[str, Any] = {"image": IMAGE, "prompt": "a hill", "options": {"max_area": AREA}}

BAD_OPENINGS: tuple[dict[str, Any], ...] = (
    {"image": None},
    {"image": b"no picture"},
    {"image": IMAGE[:60]},
    {"image": encode_picture(Image.new("1", (4, 4)))},
    {"prompt": None},
    {"prompt": b"\xff"},
    {"options": {"sed": 1}},
    {"options": b"{"},
    {"options": {"max_area": 1}},
    {"chunk_index": 3, "keys": ["w"]},
    {"chunk_index": 0, "keys": ["?"]},
)
"""Each replaces inputs of a good opening."""


def bad_controls(index: int) -> tuple[dict[str, Any], ...]:
    """Controls for chunk `index` that no session takes."""
    still = np.tile(np.eye(4, dtype=np.float32), (3, 1, 1))
    return (
        {"keys": ["w"]},
        {"chunk_index": -1, "keys": ["w"]},
        {"chunk_index": index, "keys": ["x"]},
        {"chunk_index": index, "keys": ["w"] * 100},
        {"chunk_index": index, "keys": ["w"], "poses": still},
        {"chunk_index": index, "poses": still * np.float32(np.nan)},
        {"chunk_index": index, "poses": still[:2]},
        {"chunk_index": index, "poses": still * 2},
        {"chunk_index": index, "image": IMAGE},
        {"chunk_index": index, "prompt": "another hill"},
        {},
    )
