"""Sessions in the tiny world, on the service's stages in this process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lingbot_tools.regression.stages import Stages
from lingbot_tools.tiny_world.figures import Frames
from lingbot_tools.tiny_world.renderer import HEIGHT, WIDTH, render
from lingbot_tools.tiny_world.scene import Scene
from lingbot_tools.tiny_world.vae_training import to_pixels
from lingbot_tools.tiny_world.walk import follow
from lingbot_triton.options import SessionOptions
from lingbot_triton.settings import Settings
from lingbot_triton.world.geometry import TEMPORAL_STRIDE
from lingbot_triton.world.vae import to_uint8

SIZE = {"height": HEIGHT, "width": WIDTH}
FIRST_CHUNK, LATER_CHUNK = 9, 12
"""Frames."""


def load_stages(checkpoint: Path) -> Stages:
    return Stages.load(Settings(checkpoint=str(checkpoint), device="cpu"))


def chunk_frames(chunk: int) -> slice:
    """Numbers of a chunk's frames in its session."""
    first = FIRST_CHUNK + LATER_CHUNK * (chunk - 1) if chunk else 0
    return slice(first, first + (LATER_CHUNK if chunk else FIRST_CHUNK))


@dataclass(frozen=True)
class Conditions:
    """A picture's conditions, which sessions with the same picture share."""

    picture: Frames
    chunks: list[Any]

    @classmethod
    def of(cls, stages: Stages, picture: Frames, chunks: int) -> Conditions:
        state = stages.condition.open({"picture": picture}, SIZE)
        steps = [stages.condition.step(state, {}, {})["condition"] for _ in range(chunks)]
        return cls(picture, steps)


def truth_of(scene: Scene, keys: tuple[str, ...]) -> Frames:
    return render(scene, follow(keys).video)


def play(
    stages: Stages,
    scene: Scene,
    conditions: Conditions,
    keys: tuple[str, ...],
    options: SessionOptions | None = None,
) -> Frames:
    """All frames of a session that holds `keys[i]` in chunk i, uint8 [n, H, W, 3]."""
    options = options or SessionOptions(chunk_count=len(keys))
    context = stages.prompt.encode(scene.prompt)
    state = stages.denoise.open({"context": context}, {"options": options.to_json(), **SIZE})
    decoder = stages.decode.open({}, {})
    frames = []
    for chunk, held in enumerate(keys):
        arrays = {"condition": conditions.chunks[chunk]}
        out = stages.denoise.step(state, arrays, {"chunk_index": chunk, "keys": held})
        frames.append(stages.decode.step(decoder, {"latent": out["latent"]}, {})["frames"])
        stages.denoise.commit(state)
    stages.denoise.close(state)
    return np.concatenate(frames)


@torch.inference_mode()
def reconstruct(stages: Stages, film: Frames) -> Frames:
    """What the VAE makes of a film of 4n - 3 frames."""
    encoder, decoder = stages.condition.encoder, stages.decode.decoder
    pixels = to_pixels(film)
    memories = encoder.open(), decoder.open()
    groups = [pixels[:, :1], *torch.split(pixels[:, 1:], TEMPORAL_STRIDE, dim=1)]
    frames = []
    for group in groups:
        moments = encoder.project(
            encoder.network(group[None], feat_cache=memories[0].features, feat_idx=[0])
        )
        latent = (moments[0, : encoder.channels] - encoder.mean) / encoder.std
        frames.append(to_uint8(decoder.decode(memories[1], latent)).numpy())
    return np.concatenate(frames)
