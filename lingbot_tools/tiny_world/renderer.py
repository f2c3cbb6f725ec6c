"""Scenes to pictures: ray casting in numpy, the project's camera convention.

Poses are camera-to-world, OpenCV axes, in the session's frame: x right, y down, z forward; the
focal length is the picture's width, as `world.camera.pixel_intrinsics` has it by default.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from lingbot_tools.tiny_world.background import Array, Rays, background
from lingbot_tools.tiny_world.objects import View, draw_object, visible_cells
from lingbot_tools.tiny_world.scene import Scene

WIDTH, HEIGHT = 96, 64

_SAMPLES = 2
"""Rays per pixel along each axis, where there are objects."""


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
        behind = background(scene, eye, _turned(coarse, turn))
        colour = behind.repeat(_SAMPLES, axis=1).repeat(_SAMPLES, axis=2)
        depth = np.full(colour.shape[1:], np.inf, np.float32)
        view = View(scene, turn, eye, _turned(fine, turn), colour, depth)
        for row, column in visible_cells(view):
            draw_object(view, row, column)
        mean = sum(
            colour[:, row::_SAMPLES, column::_SAMPLES]
            for row, column in itertools.product(range(_SAMPLES), repeat=2)
        )
        levels = mean * (255 * scene.brightness / _SAMPLES**2) + 0.5
        frame[:] = np.clip(levels, 0, 255).transpose(1, 2, 0)
    return frames


def _camera_rays(width: int, height: int, samples: int) -> Rays:
    """At the centres of `samples` by `samples` parts of each pixel, in camera axes, z = 1."""
    x = ((np.arange(width * samples) + 0.5) / samples - width / 2) / width
    y = ((np.arange(height * samples) + 0.5) / samples - height / 2) / width
    grid = np.meshgrid(x, y)
    directions = np.stack((*grid, np.ones_like(grid[0]))).astype(np.float32)
    return Rays(directions, np.sqrt((directions**2).sum(0)))


def _turned(rays: Rays, turn: Array) -> Rays:
    shape = rays.directions.shape
    return Rays((turn @ rays.directions.reshape(3, -1)).reshape(shape), rays.stretch)
