"""Sessions in the tiny world, on the service's stages in this process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from lingbot_tools.regression.play import Stages
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


def truth_of(scene: Scene, keys: tuple[str, ...]) -> Frames:
    """The renderer's frames uint8 [n, H, W, 3] along `keys`, one entry a chunk."""
    return render(scene, follow(keys).video)


class Player:
    """Plays sessions of at most `chunks` chunks that all start from a scene's first picture."""

    def __init__(self, stages: Stages, scene: Scene, chunks: int) -> None:
        self.stages = stages
        self.scene = scene
        state = stages.condition.open({"picture": truth_of(scene, ("",))[0]}, SIZE)
        self.conditions = [stages.condition.step(state, {}, {})["condition"] for _ in range(chunks)]

    def play(self, keys: tuple[str, ...], options: SessionOptions | None = None) -> Frames:
        """All frames of a session that holds `keys[i]` in chunk i, uint8 [n, H, W, 3]."""
        denoise, decode = self.stages.denoise, self.stages.decode
        options = options or SessionOptions(chunk_count=len(keys))
        context = self.stages.prompt.encode(self.scene.prompt)
        state = denoise.open({"context": context}, {"options": options.to_json(), **SIZE})
        decoder = decode.open({}, {})
        frames = []
        for chunk, held in enumerate(keys):
            arrays = {"condition": self.conditions[chunk]}
            out = denoise.step(state, arrays, {"chunk_index": chunk, "keys": held})
            frames.append(decode.step(decoder, {"latent": out["latent"]}, {})["frames"])
            denoise.commit(state)
        denoise.close(state)
        return np.concatenate(frames)


@torch.inference_mode()
def reconstruct(stages: Stages, film: Frames) -> Frames:
    """What the VAE makes of a film of 4n - 3 frames."""
    encoder, decoder = stages.condition.encoder, stages.decode.decoder
    pixels = to_pixels(film)
    encoded, decoded = encoder.open(), decoder.open()
    groups = [pixels[:, :1], *torch.split(pixels[:, 1:], TEMPORAL_STRIDE, dim=1)]
    frames = [decoder.decode(decoded, encoder.encode(encoded, group)) for group in groups]
    return np.concatenate([to_uint8(part).numpy() for part in frames])
