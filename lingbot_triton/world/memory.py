"""What sessions take of a device's memory, in bytes."""

from __future__ import annotations

from lingbot_triton.options import SessionOptions
from lingbot_triton.world.config import TransformerConfig
from lingbot_triton.world.family import WORLD_FAST
from lingbot_triton.world.geometry import Geometry

CHUNK = WORLD_FAST.chunk_latent_frames


def frame_bytes(config: TransformerConfig, geometry: Geometry, itemsize: int) -> int:
    """Keys and values of one latent frame, in all layers; `itemsize` is a number's bytes."""
    return 2 * geometry.tokens_per_frame * config.num_layers * config.dim * itemsize


def prompt_bytes(config: TransformerConfig, itemsize: int) -> int:
    """Keys and values of a session's prompt."""
    return 2 * config.text_len * config.num_layers * config.dim * itemsize


def session_bytes(
    config: TransformerConfig, options: SessionOptions, geometry: Geometry, itemsize: int
) -> int:
    """What a session holds for as long as it is open: its frames' and its prompt's cache."""
    frames = options.cache_latent_frames(CHUNK) * frame_bytes(config, geometry, itemsize)
    return frames + prompt_bytes(config, itemsize)


def chunk_bytes(config: TransformerConfig, geometry: Geometry, itemsize: int) -> int:
    """What a session holds besides from a chunk's control to its commit: scales and shifts."""
    return CHUNK * frame_bytes(config, geometry, itemsize)
