"""What distinguishes one release of LingBot-World from another, apart from its weights."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelFamily:
    """Properties of a release that everything around the network follows."""

    name: str
    chunk_latent_frames: int
    """Latent frames of one chunk."""


WORLD_FAST = ModelFamily("LingBot-World-Fast", chunk_latent_frames=3)
"""The first release: 9 video frames for the first chunk, 12 for every later one."""
