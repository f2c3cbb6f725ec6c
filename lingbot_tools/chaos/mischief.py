"""Requests that cannot be understood, and sessions that cannot be opened."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image

AREA = 32 * 48


def _png(image: Image.Image) -> bytes:
    data = io.BytesIO()
    image.save(data, "PNG")
    return data.getvalue()


IMAGE = _png(Image.new("RGB", (48, 32), (90, 120, 60)))
OPENING: dict[str, Any] = {"image": IMAGE, "prompt": "a hill", "options": {"max_area": AREA}}

BAD_OPENINGS: tuple[dict[str, Any], ...] = (
    {"image": None},
    {"image": b"no picture"},
    {"image": IMAGE[:60]},
    {"image": _png(Image.new("1", (4, 4)))},
    {"prompt": None},
    {"prompt": b"\xff"},
    {"options": {"sed": 1}},
    {"options": b"{"},
    {"options": {"max_area": 1}},
    {"chunk_index": 3, "keys": ["w"]},
    {"chunk_index": 0, "keys": ["?"]},
)
"""Each replaces inputs of a good opening."""


def bad_control(kind: int, index: int) -> dict[str, Any]:
    """One of `BAD_CONTROLS` kinds of control for chunk `index` that no session takes."""
    still = np.tile(np.eye(4, dtype=np.float32), (3, 1, 1))
    controls: tuple[dict[str, Any], ...] = (
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
    return controls[kind % len(controls)]


BAD_CONTROLS = 11
