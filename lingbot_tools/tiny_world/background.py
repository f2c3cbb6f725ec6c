"""What is behind the objects of a scene, smoothed as it is computed: floor, sky or ceiling."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lingbot_tools.tiny_world.scene import EYE_HEIGHT, Scene

Array = NDArray[np.float32]

_LEVEL = 1e-4


def background(scene: Scene, eye: Array, rays: Array, lengths: Array) -> Array:
    """Colours [3, h, w] of floor, and sky or ceiling; `rays` [3, h, w] have `lengths` [h, w]."""
    colour = np.empty_like(rays)
    floor, sky = rays[1] > _LEVEL, rays[1] <= _LEVEL
    planes = [(floor, EYE_HEIGHT, scene.floor_colours)]
    if scene.kind == "hall":
        light = scene.floor_colours[0] * np.float32(0.35) + np.float32(0.45)
        ceiling = rays[1] < -_LEVEL
        planes.append((ceiling, EYE_HEIGHT - scene.height, (light, light * np.float32(0.85))))
        sky &= ~ceiling
    for mask, level, colours in planes:
        surface, depth = _plane(scene, eye, rays[:, mask], level, colours, mask.shape[1])
        colour[:, mask] = fog(scene, surface, depth * lengths[mask])
    colour[:, sky] = _sky(scene, rays[:, sky])
    return colour


def _plane(
    scene: Scene, eye: Array, rays: Array, level: float, colours: tuple[Array, Array], width: int
) -> tuple[Array, Array]:
    """Colours [3, n] and depth [n] of the plane y = `level` in a picture `width` pixels wide."""
    flat, depth = rays[::2], level / rays[1]
    points = eye[::2, None] + depth * flat
    # A pixel covers more of the plane along the ray than across it.
    across = depth / width
    along = across * np.minimum(depth / abs(level), 100)
    aligned = np.abs(flat) / (np.sqrt((flat**2).sum(0)) + 1e-6)
    widths = (aligned * along + aligned[::-1] * across) / scene.tile
    waves = _square_wave(points / scene.tile, widths)
    share = 0.5 + 0.5 * (waves[0] * waves[1] if scene.floor == "checkered" else waves[0])
    one, other = colours  # which are the same where the floor is plain
    surface = other[:, None] + share * (one - other)[:, None]
    cells = points / scene.spacing
    gaps = (cells - np.round(cells)) * scene.spacing
    surface *= 1 - 0.45 * np.exp((gaps**2).sum(0) / -((2.2 * scene.radius) ** 2))
    return surface, depth


def _square_wave(x: Array, width: Array) -> Array:
    """A wave of ±1 and period 2, averaged over `width`."""
    width = np.maximum(width, 1e-3)
    upper, lower = (x + width / 2) / 2, (x - width / 2) / 2
    mean = np.abs(lower - np.floor(lower) - 0.5) - np.abs(upper - np.floor(upper) - 0.5)
    wave: Array = mean * (2 / width)
    return wave


def _sky(scene: Scene, rays: Array) -> Array:
    """Colours [3, n] of rays [3, n] that meet nothing."""
    reach = np.sqrt(rays[0] ** 2 + rays[2] ** 2) + 1e-6
    slope = -rays[1] / reach
    lift = np.clip(slope * 1.2, 0, 1)
    colour = scene.horizon[:, None] + lift * (scene.zenith - scene.horizon)[:, None]
    facing = scene.light @ (rays / np.sqrt(reach**2 + rays[1] ** 2))
    near = facing > 0.9
    toward = facing[near]
    glow = 0.45 * np.exp((toward - 1) * 60) + np.clip((toward - 0.994) * 500, 0, 0.5)
    colour[:, near] += glow * (1 - colour[:, near])
    count, phase, height = scene.hills
    low = slope < height * 1.3
    azimuth = np.arctan2(rays[0][low], rays[2][low])
    ridge = height * (0.55 + 0.45 * np.sin(count * azimuth + phase))
    share = np.clip((ridge - slope[low]) * 70 + 0.5, 0, 1)
    colour[:, low] += share * (scene.hill_colour[:, None] - colour[:, low])
    blended: Array = colour.astype(np.float32)
    return blended


def fog(scene: Scene, surface: Array, distance: Array) -> Array:
    """Colours `surface` [3, n] as they look from `distance` [n]."""
    clear = np.exp(-((scene.fog * np.minimum(distance, 50)) ** 2))
    haze = scene.horizon[:, None]
    fogged: Array = haze + clear * (surface - haze)
    return fogged
