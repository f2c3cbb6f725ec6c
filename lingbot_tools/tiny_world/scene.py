"""Procedural scenes, drawn from a seed and described by a prompt, and walks through them.

Everything repeats over the plane or around the horizon, so that what comes into view on a turn
follows from what was seen before and from the prompt.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingbot_triton.options import SessionOptions
from lingbot_triton.world.camera import Camera, Poses
from lingbot_triton.world.family import WORLD_FAST
from lingbot_triton.world.geometry import TEMPORAL_STRIDE

Colour = NDArray[np.float32]
"""Red, green, blue in [0, 1]."""

EYE_HEIGHT = 0.5
"""Of the camera above the floor; one step of a held key is 0.05."""

FIRST_TRAINING_SCENE = 1_000_000
"""Scenes with lower numbers are kept for measuring."""

COLOURS = {
    "red": (0.80, 0.18, 0.16),
    "orange": (0.92, 0.52, 0.16),
    "yellow": (0.93, 0.82, 0.28),
    "green": (0.27, 0.62, 0.27),
    "teal": (0.16, 0.60, 0.60),
    "blue": (0.22, 0.38, 0.80),
    "purple": (0.52, 0.28, 0.68),
    "pink": (0.93, 0.56, 0.68),
    "white": (0.93, 0.92, 0.90),
    "grey": (0.52, 0.53, 0.55),
    "brown": (0.47, 0.31, 0.20),
}

SKIES = {  # horizon, zenith, brightness of everything
    "at noon": ((0.80, 0.90, 0.98), (0.26, 0.50, 0.88), 1.0),
    "at sunset": ((0.98, 0.70, 0.45), (0.42, 0.34, 0.62), 0.9),
    "at night": ((0.17, 0.22, 0.38), (0.03, 0.05, 0.14), 0.75),
    "in the mist": ((0.80, 0.82, 0.83), (0.68, 0.72, 0.76), 0.95),
}

_PILLARS = "A {kind} with {1} and {2} pillars on a {floor} {0} floor {sky}."
KINDS = {  # radius and height of the objects, and the prompt with colours of floor and objects
    "plaza": ((0.14, 0.24), (1.0, 1.6), _PILLARS),
    "grove": ((0.06, 0.1), (1.0, 1.6), "A grove of {2} trees on a {floor} {0} meadow {sky}."),
    "hall": ((0.14, 0.24), (1.3, 1.5), _PILLARS),
}
FLOORS = ("checkered", "striped", "plain")

_HELD = ("w", "l", "j", "wl", "wj", "s", "a", "d", "i", "k", "", "sj", "dl")
_ODDS = np.array((24, 13, 13, 10, 10, 5, 5, 5, 3, 3, 5, 2, 2)) / 100
"""How often walks hold which keys."""
_REPEAT = 0.35
"""How often a walk goes on with the keys of the chunk before."""
CLEARANCE = 0.15
_LEVEL_DEGREES = 25.0
"""Walks look no farther up or down."""
_TRIES = 40


class Scene:
    """The world number `seed`. Its frame: x and z on the floor, y down, the eye at y = 0."""

    def __init__(self, seed: int) -> None:
        # The order of the draws decides what a seed gives.
        random = np.random.default_rng([seed, 0x5CE9E])
        draw = random.uniform
        self.kind = kind = str(random.choice(list(KINDS)))
        radius, height, prompt = KINDS[kind]
        self.floor = floor = str(random.choice(FLOORS[:2] if kind != "grove" else FLOORS))
        sky = str(random.choice(list(SKIES)))
        names = [str(name) for name in random.choice(list(COLOURS), 3, replace=False)]
        self.prompt = prompt.format(*names, kind=kind, floor=floor, sky=sky)
        self.horizon, self.zenith = (np.array(colour, np.float32) for colour in SKIES[sky][:2])
        self.brightness = SKIES[sky][2]
        ground = _jittered(random, names[0])
        other = ground * draw(0.62, 0.78) if floor != "plain" else ground
        self.floor_colours = ground, other.astype(np.float32)
        self.object_colours = _jittered(random, names[1]), _jittered(random, names[2])
        if kind == "grove":
            self.object_colours = _jittered(random, "brown"), self.object_colours[1]
        azimuth, lift = draw(-math.pi, math.pi), draw(0.25, 0.5)
        light = np.array([math.cos(azimuth), -lift, math.sin(azimuth)])
        self.light = (light / np.linalg.norm(light)).astype(np.float32)
        """Unit vector towards the sun."""
        self.spacing = draw(2.2, 3.0)
        """Of the square lattice that pillars or trees stand on."""
        self.hills = int(random.integers(5, 10)), draw(0, 2 * math.pi), draw(0.06, 0.16)
        """Number around the horizon, phase, height as the tangent of an elevation."""
        self.hill_colour = _jittered(random, names[0]) * 0.35 + self.horizon * 0.45
        self.tile = draw(0.5, 0.9)
        self.radius, self.height = draw(*radius), draw(*height)
        self.round = kind == "grove" or bool(random.random() < 0.5)
        self.fog = draw(0.16, 0.22) * (1.5 if sky == "in the mist" else 1.0)
        """Extinction per unit of length."""
        self.yaw = draw(-math.pi, math.pi)
        """Radians by which a session's axes are turned in the scene."""
        shifts = draw(-0.2, 0.2), draw(-0.2, 0.2)
        self.origin = self.spacing * (0.5 + shifts[0]), self.spacing * (0.5 + shifts[1])
        """x and z of a session's first pose in the scene."""

    @property
    def placement(self) -> NDArray[np.float64]:
        """Session to scene coordinates, [4, 4]."""
        c, s = math.cos(self.yaw), math.sin(self.yaw)
        x, z = self.origin
        return np.array([[c, 0, s, x], [0, 1, 0, 0], [-s, 0, c, z], [0, 0, 0, 1]])

    def clearance(self, poses: NDArray[np.float64]) -> float:
        """Distance of the nearest of session `poses` [n, 4, 4] from the surface of an object."""
        placed = self.placement @ poses
        offsets = [placed[:, axis, 3] / self.spacing for axis in (0, 2)]
        gaps = [np.abs(offset - np.round(offset)) * self.spacing for offset in offsets]
        distance = np.hypot(*gaps) if self.round else np.maximum(*gaps)
        return float(distance.min()) - self.radius


def vocabulary() -> list[str]:
    """Every word of every prompt, lower case, sorted."""
    words = {"a", "of", "trees", "on", "meadow", "with", "and", "pillars", "floor", "."}
    return sorted({*words, *COLOURS, *KINDS, *FLOORS, *" ".join(SKIES).split()})


def _jittered(random: np.random.Generator, name: str) -> Colour:
    colour = np.array(COLOURS[name], np.float32) + random.uniform(-0.05, 0.05, 3)
    jittered: Colour = np.clip(colour, 0, 1).astype(np.float32)
    return jittered


class Walk(NamedTuple):
    """Keys per chunk, poses at video rate [9 + 12 (n - 1), 4, 4] and at latent rate [3n, 4, 4]."""

    keys: tuple[str, ...]
    video: Poses
    latent: Poses


def chunk_frames(chunk: int) -> slice:
    """Numbers of a chunk's frames in its session: 9 of the first, 12 of every later one."""
    return slice(max(12 * chunk - 3, 0), 12 * chunk + 9)


def follow(keys: tuple[str, ...]) -> Walk:
    """The walk that holds `keys[i]` for chunk i, at the steps that sessions have by default."""
    camera, options = Camera(WORLD_FAST.chunk_latent_frames), SessionOptions()
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
