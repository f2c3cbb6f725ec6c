"""Scenes to pictures: ray casting in numpy, the project's camera convention.

Poses are camera-to-world, OpenCV axes, in the session's frame: x right, y down, z forward; the
focal length is the picture's width, as `world.camera.pixel_intrinsics` has it by default.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from lingbot_tools.tiny_world.scene import EYE_HEIGHT, Scene

Array = NDArray[np.float32]
Meet = Callable[[Array], tuple[Array, Array]]
"""Rays to the depth (infinite for a miss) and the light of what they meet."""

WIDTH, HEIGHT = 96, 64

_SAMPLES = 2
"""Rays per pixel along each axis, where there are objects."""
_LEVEL = 1e-4
_NEAR = 0.05
_FAR = 8.0
"""Beyond this, fog has taken the objects' colour."""


def render(
    scene: Scene, poses: NDArray[np.float64], width: int = WIDTH, height: int = HEIGHT
) -> NDArray[np.uint8]:
    """Pictures uint8 [n, height, width, 3] from session `poses` [n, 4, 4].

    What lies behind the objects is smoothed as it is computed, and takes one ray per pixel.
    """
    placed = (scene.placement @ poses).astype(np.float32)
    rays = _camera_rays(width, height, 1), _camera_rays(width, height, _SAMPLES)
    frames = np.empty((len(poses), height, width, 3), np.uint8)
    parts = list(itertools.product(range(_SAMPLES), repeat=2))
    for frame, pose in zip(frames, placed, strict=True):
        view = _View(scene, pose, *rays)
        for row, column in view.visible_cells():
            view.draw_object(row, column)
        mean = sum(view.colour[:, row::_SAMPLES, column::_SAMPLES] for row, column in parts)
        levels = mean * (255 * scene.brightness / _SAMPLES**2) + 0.5
        frame[:] = np.clip(levels, 0, 255).transpose(1, 2, 0)
    return frames


def _camera_rays(width: int, height: int, samples: int) -> Array:
    """[3, h, w] through the centres of `samples` by `samples` parts of each pixel, z = 1."""
    x = ((np.arange(width * samples) + 0.5) / samples - width / 2) / width
    y = ((np.arange(height * samples) + 0.5) / samples - height / 2) / width
    grid = np.meshgrid(x, y)
    rays: Array = np.stack((*grid, np.ones_like(grid[0]))).astype(np.float32)
    return rays


class _View:
    """One picture in work; lengths along a ray are depths, as its z in camera axes is 1."""

    def __init__(self, scene: Scene, pose: Array, coarse: Array, fine: Array) -> None:
        """`fine` rays are cast at objects, several a pixel."""
        self.scene, self.turn, self.eye = scene, pose[:3, :3], pose[:3, 3]
        lengths = [np.sqrt((rays**2).sum(0)) for rays in (coarse, fine)]
        behind, self.rays = (
            (self.turn @ rays.reshape(3, -1)).reshape(rays.shape) for rays in (coarse, fine)
        )
        self.lengths = lengths[1]
        colour = _background(scene, self.eye, behind, lengths[0])
        self.colour = colour.repeat(_SAMPLES, axis=1).repeat(_SAMPLES, axis=2)
        self.depth = np.full(self.lengths.shape, np.inf, np.float32)

    def visible_cells(self) -> list[list[int]]:
        """Lattice points whose objects may be in view; nearness is sorted out by depth."""
        spacing = self.scene.spacing
        reach = int(_FAR / spacing) + 1
        span = np.arange(-reach, reach + 1)
        grid = np.meshgrid(*(span + round(float(at) / spacing) for at in self.eye[::2]))
        cells = np.reshape(grid, (2, -1))
        x, z = cells * spacing - self.eye[::2, None]
        # Along the floor, whatever the pitch, which widens what of the plane is in view.
        right = self.turn[[0, 2], 0]
        ahead = z * right[0] - x * right[1]
        aside = np.abs(x * right[0] + z * right[1])
        seen = (x * x + z * z < _FAR**2) & (ahead > -0.8) & (aside < 0.6 * ahead + 1.0)
        points: list[list[int]] = cells[:, seen].T.tolist()
        return points

    def draw_object(self, row: int, column: int) -> None:
        """Paint what stands on a lattice point: a pillar, or a trunk with its crown."""
        scene, colours, grove = self.scene, self.scene.object_colours, self.scene.kind == "grove"
        x, z = row * scene.spacing - self.eye[0], column * scene.spacing - self.eye[2]
        base, top, radius = EYE_HEIGHT, EYE_HEIGHT - scene.height, scene.radius

        def pillar(rays: Array) -> tuple[Array, Array]:
            enter = _enter_round if scene.round else _enter_square
            depth, facing = enter(rays[::2], (x, z), radius, scene.light[::2])
            y = depth * rays[1]
            lit = 0.62 + 0.38 * np.maximum(facing, -0.5)
            lit *= 1 - 0.35 * np.clip(1 - (base - y) / 0.35, 0, 1) ** 2
            return np.where((y <= base) & (y >= top), depth, np.inf), lit

        def crown(rays: Array) -> tuple[Array, Array]:
            depth, facing = _enter_round(rays, centre, size, scene.light)
            return depth, 0.66 + 0.34 * np.maximum(facing, -0.6)

        box = (x - radius, top, z - radius), (x + radius, base, z + radius)
        self._paint(*box, pillar, colours[0 if grove else (row + column) % 2])
        if grove:
            centre, size = (x, top, z), 0.42 * scene.spacing * 0.5
            self._paint([c - size for c in centre], [c + size for c in centre], crown, colours[1])

    def _paint(
        self, low: Sequence[float], high: Sequence[float], meet: Meet, colour: Array
    ) -> None:
        """Colour the rays that `meet` a surface, with nothing nearer, between two corners of a box
        in the scene, relative to the eye.
        """
        window = self._window(low, high)
        if window is None:
            return
        depth, lit = meet(self.rays[:, window[0], window[1]])
        hit = (depth > _NEAR) & (depth < self.depth[window])
        surface = colour[:, None] * lit[hit]
        fogged = _fog(self.scene, surface, depth[hit] * self.lengths[window][hit])
        self.colour[:, window[0], window[1]][:, hit] = fogged
        self.depth[window][hit] = depth[hit]

    def _window(self, low: Sequence[float], high: Sequence[float]) -> tuple[slice, slice] | None:
        """The part of the picture that a box in the scene, relative to the eye, may cover."""
        corners = itertools.product(*zip(low, high, strict=True))
        seen = np.array(list(corners), np.float32) @ self.turn
        height, width = self.depth.shape
        if seen[:, 2].max() < _NEAR:
            return None
        if seen[:, 2].min() < _NEAR:
            return slice(0, height), slice(0, width)
        x = seen[:, 0] / seen[:, 2] * width + width / 2
        y = seen[:, 1] / seen[:, 2] * width + height / 2
        rows = slice(max(int(y.min()), 0), min(int(y.max()) + 1, height))
        columns = slice(max(int(x.min()), 0), min(int(x.max()) + 1, width))
        return (rows, columns) if rows.start < rows.stop and columns.start < columns.stop else None


def _enter_round(
    rays: Array, centre: Sequence[float], radius: float, light: Array
) -> tuple[Array, Array]:
    """Depth (infinite for a miss) where `rays` enter a ball or an endless cylinder, and how far
    its surface there faces the light; of 3 or 2 coordinates each.
    """
    a = (rays**2).sum(0)
    b = sum(ray * c for ray, c in zip(rays, centre, strict=True))
    rest = b * b - a * (sum(c * c for c in centre) - radius * radius)
    depth = np.where(rest > 0, (b - np.sqrt(np.maximum(rest, 0))) / (a + 1e-9), np.inf)
    finite = np.where(rest > 0, depth, 0)
    normal = [(finite * ray - c) / radius for ray, c in zip(rays, centre, strict=True)]
    return depth, sum(n * toward for n, toward in zip(normal, light, strict=True))


def _enter_square(
    rays: Array, centre: Sequence[float], radius: float, light: Array
) -> tuple[Array, Array]:
    """The same for an endless square column that is aligned with the axes."""
    inverse = 1 / np.where(np.abs(rays) < 1e-6, np.float32(1e-6), rays)
    middle = np.array(centre)[:, None, None]
    planes = (middle - radius) * inverse, (middle + radius) * inverse
    enter, leave = np.minimum(*planes), np.maximum(*planes)
    first = np.maximum(*enter)
    depth = np.where(first <= np.minimum(*leave), first, np.inf)
    facing = -np.sign(inverse) * light[:, None, None]
    return depth, np.where(enter[0] > enter[1], facing[0], facing[1])


def _background(scene: Scene, eye: Array, rays: Array, lengths: Array) -> Array:
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
        colour[:, mask] = _fog(scene, surface, depth * lengths[mask])
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


def _fog(scene: Scene, surface: Array, distance: Array) -> Array:
    """Colours `surface` [3, n] as they look from `distance` [n]."""
    clear = np.exp(-((scene.fog * np.minimum(distance, 50)) ** 2))
    haze = scene.horizon[:, None]
    fogged: Array = haze + clear * (surface - haze)
    return fogged
