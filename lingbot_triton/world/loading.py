"""The transformer, from a checkpoint to a device."""

from __future__ import annotations

from pathlib import Path

import torch

from lingbot_triton.world import checkpoint
from lingbot_triton.world.attention import choose
from lingbot_triton.world.config import TransformerConfig
from lingbot_triton.world.dit import WorldTransformer, dtype_of
from lingbot_triton.world.kernels import Kernels


def read_config(folder: Path) -> TransformerConfig:
    """The transformer's shape, from config.json and the headers of its weights."""
    declared = checkpoint.read_json(folder / "config.json")
    shapes = checkpoint.shapes(checkpoint.weight_files(folder))
    return TransformerConfig.read(declared, shapes, str(folder))


def load_transformer(
    root: Path,
    device: torch.device,
    dtype: torch.dtype,
    *,
    attention: str = "sdpa",
    compiled: bool = False,
) -> WorldTransformer:
    """Built on the meta device, then filled shard by shard in the dtypes it computes in.

    `attention` is one of `attention.CHOICES`. Raises CheckpointError where config and weights
    disagree, or names or shapes do not fit, and AttentionError.
    """
    folder = checkpoint.find_transformer(root)
    config = read_config(folder)
    backend = choose(attention, device, dtype, config.head_dim)  # known before a long load
    kernels = Kernels.compile(backend) if compiled else Kernels(backend)
    with torch.device("meta"):
        network = WorldTransformer(config, kernels).eval()
    files = checkpoint.weight_files(folder)
    weights = (weight for file in files for weight in checkpoint.read(file, device))
    checkpoint.load(network, weights, device, lambda name: dtype_of(name, dtype), str(folder))
    return network
