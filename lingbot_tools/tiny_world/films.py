"""Films of the tiny world as latents on disk: what the transformer learns from."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from rich.progress import track
from torch.utils.data import DataLoader

from lingbot_tools.tiny_world.loop import Work
from lingbot_tools.tiny_world.renderer import render
from lingbot_tools.tiny_world.scene import FIRST_TRAINING_SCENE, Scene, stroll
from lingbot_tools.tiny_world.vae_training import load_vae, released_statistics, to_pixels
from lingbot_triton.world.family import WORLD_FAST
from lingbot_triton.world.geometry import TEMPORAL_STRIDE

CHUNK = WORLD_FAST.chunk_latent_frames

_CONDITION_LATENTS = 7
"""Black frames change the condition hardly any more after so many latent frames."""


@dataclass(frozen=True)
class FilmsSize:
    films: int = 3200
    chunks: int = 7
    shard: int = 16
    """Films of one file, which is what one process does at a time."""


@dataclass(frozen=True)
class Films:
    """All films, float16 latents [n, 16, 3 · chunks, h, w] and conditions [n, 16, 7, h, w]."""

    latents: torch.Tensor
    conditions: torch.Tensor
    scenes: list[int]
    keys: list[tuple[str, ...]]

    @classmethod
    def load(cls, work: Work) -> Films:
        """Every shard that is there; raises FileNotFoundError where there is none."""
        paths = sorted(work.root.glob("films/*.pt"))
        if not paths:
            raise FileNotFoundError(f"{work.root} holds no films")
        shards = [torch.load(path, weights_only=True) for path in paths]
        return cls(
            torch.cat([shard["latents"] for shard in shards]),
            torch.cat([shard["conditions"] for shard in shards]),
            [scene for shard in shards for scene in shard["scenes"]],
            [tuple(keys) for shard in shards for keys in shard["keys"]],
        )

    @property
    def chunks(self) -> int:
        return self.latents.shape[2] // CHUNK

    def condition(self, index: int, chunks: tuple[int, ...]) -> torch.Tensor:
        """Mask and latents [20, 3 · len(chunks), h, w] of these chunks of one film."""
        frames = frames_of(chunks)
        kept = self.conditions.shape[2]
        latents = self.conditions[index][:, [min(frame, kept - 1) for frame in frames]].float()
        mask = latents.new_zeros(4, *latents.shape[1:])
        mask[:, [place for place, frame in enumerate(frames) if frame == 0]] = 1
        return torch.cat((mask, latents))


def frames_of(chunks: tuple[int, ...]) -> list[int]:
    """Numbers of the chunks' latent frames."""
    return [chunk * CHUNK + frame for chunk in chunks for frame in range(CHUNK)]


def make_films(work: Work, size: FilmsSize, base_dim: int, minutes: float, processes: int) -> None:
    """Render and encode films into shards, as many as `size` says; shards that are there stay.

    Needs the normalised VAE's weights in `vae-final.pt`. Stops after `minutes`, or on Ctrl-C.
    With no `processes` this one does the work.
    """
    ending = time.monotonic() + 60 * minutes
    loader: DataLoader[int] = DataLoader(
        range(-(-size.films // size.shard)),  # type: ignore[arg-type]
        batch_size=None,
        collate_fn=partial(_make_shard, work, size, base_dim),
        num_workers=processes,
        multiprocessing_context="spawn" if processes else None,
    )
    for _ in track(loader if minutes > 0 else (), "films"):
        if time.monotonic() > ending:
            break


def _make_shard(work: Work, size: FilmsSize, base_dim: int, number: int) -> int:
    name = f"films/{number:05}.pt"
    if work.path(name).exists():
        return number
    vae = load_vae(work, base_dim)
    first = FIRST_TRAINING_SCENE + number * size.shard
    scenes = list(range(first, first + size.shard))
    walks = [stroll(Scene(scene), size.chunks, scene) for scene in scenes]
    latents, conditions = [], []
    for scene, walk in zip(scenes, walks, strict=True):
        film = to_pixels(render(Scene(scene), walk.video))
        black = film.clone()[:, : 1 + TEMPORAL_STRIDE * (_CONDITION_LATENTS - 1)]
        black[:, 1:] = 0
        latents.append(encode(vae, film).half())
        conditions.append(encode(vae, black).half())
    shard = {
        "latents": torch.stack(latents),
        "conditions": torch.stack(conditions),
        "scenes": scenes,
        "keys": [list(walk.keys) for walk in walks],
    }
    work.replace(name, partial(torch.save, shard))
    return number


@torch.inference_mode()
def encode(vae: Any, film: torch.Tensor) -> torch.Tensor:
    """Normalised latents [16, n, h, w] of a film [3, 4n - 3, H, W]."""
    with torch.autocast("cpu", torch.bfloat16):
        raw = vae.encode(film.unsqueeze(0)).latent_dist.mean.float()[0]
    mean, std = released_statistics(vae)
    normalised: torch.Tensor = (raw - mean) / std
    return normalised


@torch.no_grad()
def decode(vae: Any, latents: torch.Tensor) -> torch.Tensor:
    """The film [3, 4n - 3, H, W] of normalised latents [16, n, h, w]."""
    mean, std = released_statistics(vae)
    with torch.autocast("cpu", torch.bfloat16):
        film: torch.Tensor = vae.decode((latents * std + mean).unsqueeze(0)).sample[0]
    return film.float().clamp(-1, 1)


def channel_weights(vae: Any, films: Films, count: int) -> torch.Tensor:
    """How much pixels depend on each latent channel, [16], 1 on average and at least 0.1."""
    generator = torch.Generator().manual_seed(0)
    changes = torch.zeros(films.latents.shape[1])
    for latents in films.latents[:count, :, :CHUNK].float():
        plain = decode(vae, latents)
        for channel in range(len(changes)):
            changed = latents.clone()
            changed[channel] += 0.5 * torch.randn(latents.shape[1:], generator=generator)
            changes[channel] += (decode(vae, changed) - plain).square().mean()
    return (changes / changes.mean()).clamp(min=0.1)
