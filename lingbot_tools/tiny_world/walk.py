"""Walks through a scene: held keys chunk by chunk, integrated as the service integrates them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lingbot_tools.tiny_world.scene import Scene
from lingbot_triton.options import SessionOptions
from lingbot_triton.world.camera import Camera, Poses
from lingbot_triton.world.family import WORLD_FAST
from lingbot_triton.world.geometry import TEMPORAL_STRIDE

_HELD = ("w", "l", "j", "wl", "wj", "s", "a", "d", "i", "k", "", "sj", "dl")
_ODDS = np.array((24, 13, 13, 10, 10, 5, 5, 5, 3, 3, 5, 2, 2)) / 100
"""How often walks hold which keys."""
_REPEAT = 0.35
"""How often a walk goes on with the keys of the chunk before."""
CLEARANCE = 0.15
_LEVEL_DEGREES = 25.0
"""Walks look no farther up or down."""
_TRIES = 40


class Walk(NamedTuple):
    """Keys per chunk, poses at video rate [9 + 12 (n - 1), 4, 4] and at latent rate [3n, 4, 4]."""

    keys: tuple[str, ...]
    video: Poses
    latent: Poses


def chunk_frames(chunk: int) -> slice:
    """Numbers of a chunk's frames in its session: 9 of the first, 12 of every later one."""
    return slice(max(12 * chunk - 3, 0), 12 * chunk + 9)


def follow(keys: tuple[str, ...], options: SessionOptions | None = None) -> Walk:
    """The walk that holds `keys[i]` for chunk i."""
    options = options or SessionOptions()
    camera = Camera(WORLD_FAST.chunk_latent_frames)
    video = [camera.pose.copy()]
    for chunk, held in enumerate(keys):
        while len(video) < chunk_frames(chunk).stop:
            camera.move(held, options)
            video.append(camera.pose.copy())
    return Walk(keys, np.stack(video), np.stack(video[::TEMPORAL_STRIDE]))


def stroll(scene: Scene, chunks: int, seed: int) -> Walk:
    """A random walk that runs into nothing."""
    random = np.random.default_rng([seed, 0x3A1C])
    keys: tuple[str, ...] = ()
    for _ in range(chunks):
        keys = (*keys, _next_keys(scene, keys, random))
    return follow(keys)


def _next_keys(scene: Scene, keys: tuple[str, ...], random: np.random.Generator) -> str:
    for _ in range(_TRIES):
        held = str(random.choice(_HELD, p=_ODDS))
        if keys and random.random() < _REPEAT:
            held = keys[-1]
        walk = follow((*keys, held))
        looks = np.abs(np.degrees(np.arcsin(np.clip(walk.video[:, 1, 2], -1, 1)))).max()
        if looks <= _LEVEL_DEGREES and scene.clearance(walk.video) > CLEARANCE:
            return held
    return "l"  # turning on the spot is always possible


def opposite(keys: tuple[str, ...]) -> tuple[str, ...]:
    """The keys that do the reverse; standing still becomes walking."""
    table = str.maketrans("wsadikjl", "swdakilj")
    return tuple(held.translate(table) or "s" for held in keys)
