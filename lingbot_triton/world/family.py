"""What distinguishes one release of LingBot-World from another, apart from its weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ModelFamily:
    """Properties of a release that everything around the network follows."""

    name: str
    chunk_latent_frames: int
    """Latent frames of one chunk."""


WORLD_FAST = ModelFamily("LingBot-World-Fast", chunk_latent_frames=3)
"""The first release: 9 video frames for the first chunk, 12 for every later one."""


def find_family(checkpoint: Path) -> ModelFamily:
    """The release that a checkpoint is of: releases are told apart here, and one is known yet."""
    return WORLD_FAST
