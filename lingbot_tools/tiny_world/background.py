"""What is behind the objects of a scene, smoothed as it is computed: floor, sky or ceiling."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lingbot_tools.tiny_world.scene import EYE_HEIGHT, Scene

Array = NDArray[np.float32]

_LEVEL = 1e-4


@dataclass
class Rays:
    """A grid of rays in the scene."""

    directions: Array
    """[3, h, w]; depth 1 along the camera's axis, so lengths along a ray are depths."""
    stretch: Array
    """Length of each direction, [h, w]."""


def background(scene: Scene, eye: Array, rays: Rays) -> Array:
    """Colours [3, h, w] of floor, and sky or ceiling."""
    colour = np.empty_like(rays.directions)
    down = rays.directions[1] > _LEVEL
    _plane(scene, eye, rays, down, EYE_HEIGHT, colour)
    up = ~down
    if scene.kind == "hall":
        ceiling = rays.directions[1] < -_LEVEL
        _plane(scene, eye, rays, ceiling, EYE_HEIGHT - scene.height, colour)
        up &= ~ceiling
    if up.any():
        colour[:, up] = _sky(scene, rays.directions[:, up])
    return colour


def _plane(
    scene: Scene, eye: Array, rays: Rays, mask: NDArray[np.bool_], level: float, colour: Array
) -> None:
    """Fill `colour` where `mask` with the plane y = `level`; fog hides its far end."""
    if not mask.any():
        return
    rx, ry, rz = rays.directions[:, mask]
    depth = level / ry
    x, z = eye[0] + depth * rx, eye[2] + depth * rz
    # A pixel covers more of the plane along the ray than across it.
    across = depth / mask.shape[1]
    along = across * np.minimum(depth / abs(level), 100)
    reach = np.sqrt(rx**2 + rz**2) + 1e-6
    ux, uz = np.abs(rx) / reach, np.abs(rz) / reach
    widths = (ux * along + uz * across) / scene.tile, (uz * along + ux * across) / scene.tile
    share = _pattern(scene.floor, x / scene.tile, z / scene.tile, widths)
    one, other = scene.floor_colours if level > 0 else _ceiling_colours(scene)
    surface = other[:, None] + share * (one - other)[:, None]
    cells = [value / scene.spacing for value in (x, z)]
    gaps = [(cell - np.round(cell)) * scene.spacing for cell in cells]
    surface *= 1 - 0.45 * np.exp((gaps[0] ** 2 + gaps[1] ** 2) / -((2.2 * scene.radius) ** 2))
    colour[:, mask] = fog(scene, surface, depth * rays.stretch[mask])


def _ceiling_colours(scene: Scene) -> tuple[Array, Array]:
    light = scene.floor_colours[0] * np.float32(0.35) + np.float32(0.45)
    return light, light * np.float32(0.85)


def _pattern(kind: str, x: Array, z: Array, widths: tuple[Array, Array]) -> Array:
    """Share of the first colour, averaged over a box of `widths` around each point, in tiles."""
    if kind == "plain":
        return np.ones_like(x)
    wave = _square_wave(x, widths[0])
    if kind == "checkered":
        wave = wave * _square_wave(z, widths[1])
    return 0.5 + 0.5 * wave


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
    unit = rays / np.sqrt(reach**2 + rays[1] ** 2)
    facing = scene.light @ unit
    near = facing > 0.9
    if near.any():
        toward = facing[near]
        glow = 0.45 * np.exp((toward - 1) * 60) + np.clip((toward - 0.994) * 500, 0, 0.5)
        colour[:, near] += glow * (1 - colour[:, near])
    low = slope < scene.hills[2] * 1.3
    if low.any():
        count, phase, height = scene.hills
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
