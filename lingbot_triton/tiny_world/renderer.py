"""Scenes to pictures: ray casting in numpy, the project's camera convention.

Poses are camera-to-world, OpenCV axes, in the session's frame: x right, y down, z forward; the
focal length is the picture's width, as `world.camera.pixel_intrinsics` has it by default.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lingbot_triton.tiny_world.scene import EYE_HEIGHT, Scene

WIDTH, HEIGHT = 96, 64

_SAMPLES = 2
"""Rays per pixel along each axis."""
_NEAR = 0.05
_LEVEL = 1e-4
_FAR = 8.0
"""Beyond this, fog has taken the objects' colour."""

Array = NDArray[np.float32]

_CORNERS = np.array(
    [[1 - a, a, 1 - b, b, 1 - c, c] for a, b, c in itertools.product((0, 1), repeat=3)], np.float32
)
"""Which of low and high x, y, z each corner of a box takes."""


@dataclass
class _Rays:
    """A grid of rays in the scene."""

    directions: Array
    """[3, h, w]; depth 1 along the camera's axis, so lengths along a ray are depths."""
    stretch: Array
    """Length of each direction, [h, w]."""


@dataclass
class _View:
    """One picture in work."""

    scene: Scene
    turn: Array
    """Camera to scene, [3, 3]."""
    eye: Array
    """Camera position in the scene, [3]."""
    fine: _Rays
    """Those that are cast at objects, several a pixel."""
    colour: Array
    """Of the fine rays, [3, h, w]."""
    depth: Array
    """Of the nearest object, [h, w]; infinite where there is none."""


def render(
    scene: Scene, poses: NDArray[np.float64], width: int = WIDTH, height: int = HEIGHT
) -> NDArray[np.uint8]:
    """Pictures uint8 [n, height, width, 3] from session `poses` [n, 4, 4].

    What lies behind the objects is smoothed as it is computed, and takes one ray per pixel.
    """
    placed = (scene.placement @ poses).astype(np.float32)
    coarse, fine = _camera_rays(width, height, 1), _camera_rays(width, height, _SAMPLES)
    frames = np.empty((len(poses), height, width, 3), np.uint8)
    for frame, pose in zip(frames, placed, strict=True):
        turn, eye = pose[:3, :3], pose[:3, 3]
        behind = _background(scene, eye, _turned(coarse, turn))
        colour = behind.repeat(_SAMPLES, axis=1).repeat(_SAMPLES, axis=2)
        depth = np.full(colour.shape[1:], np.inf, np.float32)
        view = _View(scene, turn, eye, _turned(fine, turn), colour, depth)
        for row, column in _visible_cells(view):
            _object(view, row, column)
        mean = sum(
            colour[:, row::_SAMPLES, column::_SAMPLES]
            for row, column in itertools.product(range(_SAMPLES), repeat=2)
        )
        levels = mean * (255 * scene.brightness / _SAMPLES**2) + 0.5
        frame[:] = np.clip(levels, 0, 255).transpose(1, 2, 0)
    return frames


def _camera_rays(width: int, height: int, samples: int) -> _Rays:
    """At the centres of `samples` by `samples` parts of each pixel, in camera axes, z = 1."""
    x = ((np.arange(width * samples) + 0.5) / samples - width / 2) / width
    y = ((np.arange(height * samples) + 0.5) / samples - height / 2) / width
    grid = np.meshgrid(x, y)
    directions = np.stack((*grid, np.ones_like(grid[0]))).astype(np.float32)
    return _Rays(directions, np.sqrt((directions**2).sum(0)))


def _turned(rays: _Rays, turn: Array) -> _Rays:
    shape = rays.directions.shape
    return _Rays((turn @ rays.directions.reshape(3, -1)).reshape(shape), rays.stretch)


def _background(scene: Scene, eye: Array, rays: _Rays) -> Array:
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
    scene: Scene, eye: Array, rays: _Rays, mask: NDArray[np.bool_], level: float, colour: Array
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
    colour[:, mask] = _fog(scene, surface, depth * rays.stretch[mask])


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


def _fog(scene: Scene, surface: Array, distance: Array) -> Array:
    """Colours `surface` [3, n] as they look from `distance` [n]."""
    clear = np.exp(-((scene.fog * np.minimum(distance, 50)) ** 2))
    haze = scene.horizon[:, None]
    fogged: Array = haze + clear * (surface - haze)
    return fogged


def _visible_cells(view: _View) -> list[tuple[int, int]]:
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


def _object(view: _View, row: int, column: int) -> None:
    scene = view.scene
    centre = (row * scene.spacing - view.eye[0], column * scene.spacing - view.eye[2])
    base, top = EYE_HEIGHT, EYE_HEIGHT - scene.height
    colour = scene.object_colours[(row + column) % 2]
    if scene.kind != "grove":
        _pillar(view, centre, scene.radius, base, top, colour)
        return
    crown = 0.42 * scene.spacing * 0.5
    _pillar(view, centre, scene.radius, base, top, scene.object_colours[0])
    _ball(view, (centre[0], top, centre[1]), crown, scene.object_colours[1])


def _window(view: _View, low: list[float], high: list[float]) -> tuple[slice, slice] | None:
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


def _pillar(
    view: _View,
    centre: tuple[float, float],
    radius: float,
    base: float,
    top: float,
    colour: Array,
) -> None:
    x, z = centre
    window = _window(view, [x - radius, top, z - radius], [x + radius, base, z + radius])
    if window is None:
        return
    rays = view.fine.directions[:, window[0], window[1]]
    cast = _cast_round if view.scene.round else _cast_square
    depth, nx, nz = cast(rays, x, z, radius)
    y = depth * rays[1]
    hit = (depth > _NEAR) & (y <= base) & (y >= top) & (depth < view.depth[window])
    if not hit.any():
        return
    light = view.scene.light
    lit = 0.62 + 0.38 * np.maximum(nx * light[0] + nz * light[2], -0.5)
    lit *= 1 - 0.35 * np.clip(1 - (base - y) / 0.35, 0, 1) ** 2
    _paint(view, window, hit, depth, lit, colour)


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
    enter = []
    leave = []
    for ray, middle in zip(inverse, (x, z), strict=True):
        one, two = (middle - radius) * ray, (middle + radius) * ray
        enter.append(np.minimum(one, two))
        leave.append(np.maximum(one, two))
    first = np.maximum(*enter)
    depth = np.where(first <= np.minimum(*leave), first, np.inf)
    through_x = enter[0] > enter[1]
    nx = np.where(through_x, -np.sign(inverse[0]), 0)
    nz = np.where(through_x, 0, -np.sign(inverse[1]))
    return depth, nx, nz


def _ball(view: _View, centre: tuple[float, float, float], radius: float, colour: Array) -> None:
    window = _window(view, [c - radius for c in centre], [c + radius for c in centre])
    if window is None:
        return
    rays = view.fine.directions[:, window[0], window[1]]
    x, y, z = centre
    a = (rays**2).sum(0)
    b = rays[0] * x + rays[1] * y + rays[2] * z
    rest = b * b - a * (x * x + y * y + z * z - radius * radius)
    depth = np.where(rest > 0, (b - np.sqrt(np.maximum(rest, 0))) / a, np.inf)
    hit = (depth > _NEAR) & (depth < view.depth[window])
    if not hit.any():
        return
    finite = np.where(hit, depth, 0)
    normal = [(finite * ray - c) / radius for ray, c in zip(rays, centre, strict=True)]
    facing = sum(n * toward for n, toward in zip(normal, view.scene.light, strict=True))
    lit = 0.66 + 0.34 * np.maximum(facing, -0.6)
    _paint(view, window, hit, depth, lit, colour)


def _paint(
    view: _View,
    window: tuple[slice, slice],
    hit: NDArray[np.bool_],
    depth: Array,
    lit: Array,
    colour: Array,
) -> None:
    surface = colour[:, None] * lit[hit]
    fogged = _fog(view.scene, surface, depth[hit] * view.fine.stretch[window][hit])
    view.colour[:, window[0], window[1]][:, hit] = fogged
    view.depth[window][hit] = depth[hit]
