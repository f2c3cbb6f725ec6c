"""What sessions take of a device's memory, in bytes."""

from __future__ import annotations

from lingbot_triton.world.config import TransformerConfig
from lingbot_triton.world.geometry import Geometry


def frame_bytes(config: TransformerConfig, geometry: Geometry, itemsize: int) -> int:
    """Keys and values of one latent frame, in all layers; `itemsize` is a number's bytes."""
    return 2 * geometry.tokens_per_frame * config.num_layers * config.dim * itemsize


def prompt_bytes(config: TransformerConfig, itemsize: int) -> int:
    """Keys and values of a session's prompt."""
    return 2 * config.text_len * config.num_layers * config.dim * itemsize


def session_bytes(
    config: TransformerConfig, cache_frames: int, geometry: Geometry, itemsize: int
) -> int:
    """What a session holds for as long as it is open: the cache of `cache_frames` latent
    frames and the prompt's.
    """
    frames = cache_frames * frame_bytes(config, geometry, itemsize)
    return frames + prompt_bytes(config, itemsize)


def chunk_bytes(
    config: TransformerConfig, chunk_frames: int, geometry: Geometry, itemsize: int
) -> int:
    """What a session holds besides from a chunk's control to its commit: scales and shifts."""
    return chunk_frames * frame_bytes(config, geometry, itemsize)


def charged_bytes(
    config: TransformerConfig,
    cache_frames: int,
    chunk_frames: int,
    geometry: Geometry,
    itemsize: int,
    vae_bytes: int = 0,
) -> int:
    """What a session is charged when it opens: all that it holds while a chunk is in work.

    `vae_bytes` is what the VAE keeps of it, where that is on the same device.
    """
    opened = session_bytes(config, cache_frames, geometry, itemsize)
    return opened + chunk_bytes(config, chunk_frames, geometry, itemsize) + vae_bytes
