"""Pillars and trees, cast against the rays of the part of the picture that they may cover."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lingbot_tools.tiny_world.background import Array, Rays, fog
from lingbot_tools.tiny_world.scene import EYE_HEIGHT, Scene

Window = tuple[slice, slice]

_NEAR = 0.05
_FAR = 8.0
"""Beyond this, fog has taken the objects' colour."""

_CORNERS = np.array(
    [[1 - a, a, 1 - b, b, 1 - c, c] for a, b, c in itertools.product((0, 1), repeat=3)], np.float32
)
"""Which of low and high x, y, z each corner of a box takes."""


@dataclass
class View:
    """One picture in work."""

    scene: Scene
    turn: Array
    """Camera to scene, [3, 3]."""
    eye: Array
    """Camera position in the scene, [3]."""
    fine: Rays
    """Those that are cast at objects, several a pixel."""
    colour: Array
    """Of the fine rays, [3, h, w]."""
    depth: Array
    """Of the nearest object, [h, w]; infinite where there is none."""


def visible_cells(view: View) -> list[tuple[int, int]]:
    """Lattice points whose objects may be in view; nearness is sorted out by depth."""
    spacing = view.scene.spacing
    reach = int(_FAR / spacing) + 1
    span = np.arange(-reach, reach + 1)
    grid = np.meshgrid(
        span + round(float(view.eye[0]) / spacing),
        span + round(float(view.eye[2]) / spacing),
    )
    row, column = (axis.ravel() for axis in grid)
    x, z = row * spacing - view.eye[0], column * spacing - view.eye[2]
    # Along the floor, whatever the pitch, which widens what of the plane is in view.
    right = view.turn[[0, 2], 0]
    ahead = z * right[0] - x * right[1]
    aside = np.abs(x * right[0] + z * right[1])
    seen = (x * x + z * z < _FAR**2) & (ahead > -0.8) & (aside < 0.6 * ahead + 1.0)
    return list(zip(row[seen].tolist(), column[seen].tolist(), strict=True))


def draw_object(view: View, row: int, column: int) -> None:
    """Paint what stands on a lattice point: a pillar, or a trunk with its crown."""
    scene = view.scene
    x, z = row * scene.spacing - view.eye[0], column * scene.spacing - view.eye[2]
    if scene.kind != "grove":
        _pillar(view, x, z, scene.object_colours[(row + column) % 2])
        return
    _pillar(view, x, z, scene.object_colours[0])
    crown = 0.42 * scene.spacing * 0.5
    _ball(view, (x, EYE_HEIGHT - scene.height, z), crown, scene.object_colours[1])


def _window(view: View, low: list[float], high: list[float]) -> Window | None:
    """The part of the picture that a box in the scene, relative to the eye, may cover."""
    seen = _CORNERS @ (np.array((low, high), np.float32).T.reshape(6, 1) * view.turn.repeat(2, 0))
    height, width = view.depth.shape
    if seen[:, 2].max() < _NEAR:
        return None
    if seen[:, 2].min() < _NEAR:
        return slice(0, height), slice(0, width)
    x = seen[:, 0] / seen[:, 2] * width + width / 2
    y = seen[:, 1] / seen[:, 2] * width + height / 2
    rows = slice(max(int(y.min()), 0), min(int(y.max()) + 1, height))
    columns = slice(max(int(x.min()), 0), min(int(x.max()) + 1, width))
    return (rows, columns) if rows.start < rows.stop and columns.start < columns.stop else None


def _pillar(view: View, x: float, z: float, colour: Array) -> None:
    scene, radius = view.scene, view.scene.radius
    base, top = EYE_HEIGHT, EYE_HEIGHT - scene.height
    window = _window(view, [x - radius, top, z - radius], [x + radius, base, z + radius])
    if window is None:
        return
    rays = view.fine.directions[:, window[0], window[1]]
    depth, nx, nz = (_cast_round if scene.round else _cast_square)(rays, x, z, radius)
    y = depth * rays[1]
    lit = 0.62 + 0.38 * np.maximum(nx * scene.light[0] + nz * scene.light[2], -0.5)
    lit *= 1 - 0.35 * np.clip(1 - (base - y) / 0.35, 0, 1) ** 2
    _paint(view, window, depth, lit, colour, (y <= base) & (y >= top))


def _cast_round(rays: Array, x: float, z: float, radius: float) -> tuple[Array, Array, Array]:
    """Depth (infinite for a miss) and horizontal normal where rays meet an endless cylinder."""
    a = rays[0] ** 2 + rays[2] ** 2
    b = rays[0] * x + rays[2] * z
    rest = b * b - a * (x * x + z * z - radius * radius)
    depth = np.where(rest > 0, (b - np.sqrt(np.maximum(rest, 0))) / (a + 1e-9), np.inf)
    finite = np.where(rest > 0, depth, 0)
    return depth, (finite * rays[0] - x) / radius, (finite * rays[2] - z) / radius


def _cast_square(rays: Array, x: float, z: float, radius: float) -> tuple[Array, Array, Array]:
    """The same for an endless square column that is aligned with the axes."""
    inverse = [
        1 / np.where(np.abs(ray) < 1e-6, np.float32(1e-6), ray) for ray in (rays[0], rays[2])
    ]
    planes = [
        ((middle - radius) * ray, (middle + radius) * ray)
        for ray, middle in zip(inverse, (x, z), strict=True)
    ]
    enter = [np.minimum(*pair) for pair in planes]
    leave = [np.maximum(*pair) for pair in planes]
    first = np.maximum(*enter)
    depth = np.where(first <= np.minimum(*leave), first, np.inf)
    through_x = enter[0] > enter[1]
    nx = np.where(through_x, -np.sign(inverse[0]), 0)
    nz = np.where(through_x, 0, -np.sign(inverse[1]))
    return depth, nx, nz


def _ball(view: View, centre: tuple[float, float, float], radius: float, colour: Array) -> None:
    window = _window(view, [c - radius for c in centre], [c + radius for c in centre])
    if window is None:
        return
    rays = view.fine.directions[:, window[0], window[1]]
    x, y, z = centre
    a = (rays**2).sum(0)
    b = rays[0] * x + rays[1] * y + rays[2] * z
    rest = b * b - a * (x * x + y * y + z * z - radius * radius)
    met = rest > 0
    depth = np.where(met, (b - np.sqrt(np.maximum(rest, 0))) / a, np.inf)
    finite = np.where(met, depth, 0)
    normal = [(finite * ray - c) / radius for ray, c in zip(rays, centre, strict=True)]
    facing = sum(n * toward for n, toward in zip(normal, view.scene.light, strict=True))
    _paint(view, window, depth, 0.66 + 0.34 * np.maximum(facing, -0.6), colour, met)


def _paint(
    view: View, window: Window, depth: Array, lit: Array, colour: Array, met: NDArray[np.bool_]
) -> None:
    """Colour the rays of the window that meet a surface where nothing nearer is."""
    hit = met & (depth > _NEAR) & (depth < view.depth[window])
    surface = colour[:, None] * lit[hit]
    fogged = fog(view.scene, surface, depth[hit] * view.fine.stretch[window][hit])
    view.colour[:, window[0], window[1]][:, hit] = fogged
    view.depth[window][hit] = depth[hit]
