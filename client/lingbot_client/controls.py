"""Controls as a person writes them on a command line or keeps them in a file."""

from __future__ import annotations

import json
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

STAND_STILL = "."


def parse_keys(text: str) -> list[str]:
    """Keys of successive chunks from text such as "w wl . sa", where "." stands still."""
    chunks = ["" if word == STAND_STILL else word for word in text.split()]
    if not chunks:
        raise ValueError('no keys given; "." stands still for a chunk')
    return chunks


def load_poses(path: Path) -> NDArray[np.float32]:
    """Camera-to-world matrices [n, 4, 4] from an .npy file, or from JSON."""
    try:
        values = np.load(path) if path.suffix == ".npy" else json.loads(path.read_text())
        poses = np.asarray(values, dtype=np.float32)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} holds no poses: {error}") from None
    if poses.ndim != 3 or poses.shape[1:] != (4, 4) or not len(poses):
        raise ValueError(f"{path} holds {list(poses.shape)}; poses are [n, 4, 4]")
    return poses


def key_controls(keys: list[str], chunks: int | None) -> list[dict[str, Any]]:
    """Arguments of `send` for every chunk: the keys, repeated from the start where they run out."""
    return [{"keys": chunk_keys} for chunk_keys in islice(cycle(keys), chunks or len(keys))]


def pose_controls(
    poses: NDArray[np.float32], chunks: int | None, latent_frames: int
) -> list[dict[str, Any]]:
    """Arguments of `send` for every chunk: one pose for each of its `latent_frames`."""
    whole, rest = divmod(len(poses), latent_frames)
    if rest or whole < (chunks or 1):
        wanted = f"at least {chunks} times" if chunks else "a multiple of"
        raise ValueError(f"{len(poses)} poses given; {wanted} {latent_frames} are needed")
    return [{"poses": part} for part in np.split(poses, whole)[:chunks]]


def parse_option(text: str) -> tuple[str, Any]:
    """A session option from "name=value"; the value is JSON."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"{text!r} is not name=value")
    try:
        return name, json.loads(value)
    except ValueError:
        raise ValueError(f"the value of {name!r} is not JSON: {value}") from None


def parse_area(text: str) -> int:
    """Pixels from "832x480" or "399360"."""
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(side.isdecimal() for side in sides):
        raise ValueError(f"{text!r} is neither WIDTHxHEIGHT nor a number of pixels")
    return int(np.prod([int(side) for side in sides]))
