"""The transformer, from a checkpoint to a device."""

from __future__ import annotations

from pathlib import Path

import torch

from lingbot_triton.world import checkpoint
from lingbot_triton.world.dit import WorldTransformer, dtype_of
from lingbot_triton.world.geometry import TransformerConfig


def load_transformer(root: Path, device: torch.device, dtype: torch.dtype) -> WorldTransformer:
    """Built on the meta device, then filled shard by shard in the dtypes it computes in.

    Raises CheckpointError where config and weights disagree, or names or shapes do not fit.
    """
    folder = checkpoint.find_transformer(root)
    given = checkpoint.read_json(folder / "config.json")
    files = checkpoint.weight_files(folder)
    config = TransformerConfig.read(given, checkpoint.shapes(files), str(folder))
    with torch.device("meta"):
        network = WorldTransformer(config).eval()
    weights = (weight for file in files for weight in checkpoint.read(file, device))
    checkpoint.load(network, weights, device, lambda name: dtype_of(name, dtype), str(folder))
    return network
