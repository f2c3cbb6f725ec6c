"""What is measured: networks of random weights, sizes, windows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from lingbot_triton.options import SessionOptions
from lingbot_triton.world.config import TransformerConfig
from lingbot_triton.world.dit import WorldTransformer, dtype_of
from lingbot_triton.world.family import WORLD_FAST
from lingbot_triton.world.geometry import Geometry

CHUNK = WORLD_FAST.chunk_latent_frames


@dataclass(frozen=True)
class Case:
    """One size of everything."""

    name: str
    config: TransformerConfig
    geometry: Geometry
    vae_width: int
    """`base_dim` of the VAE."""
    compile_backend: str
    rolling: SessionOptions
    full: SessionOptions
    rolling_chunks: int
    repeats: int


FULL = Case(
    "full",
    TransformerConfig(5120, 13824, 40, 40, "cam"),
    Geometry(464, 832),
    vae_width=96,
    compile_backend="inductor",
    rolling=SessionOptions(kv_window_frames=15, kv_sink_frames=3),
    full=SessionOptions(chunk_count=7),
    rolling_chunks=20,
    repeats=5,
)
SMALL = replace(
    FULL,
    name="small",
    config=TransformerConfig(96, 192, 4, 3, "cam", text_dim=64),
    geometry=Geometry(32, 48),
    vae_width=8,
    compile_backend="eager",
    repeats=2,
)


def random_network(
    config: TransformerConfig, device: torch.device, dtype: torch.dtype
) -> WorldTransformer:
    """A network of random weights, made on the device: tokens neither vanish nor grow in it."""
    with torch.device("meta"):
        network = WorldTransformer(config).eval()
    generator = torch.Generator(device).manual_seed(0)
    for name, weight in list(network.named_parameters()):
        owner, _, leaf = name.rpartition(".")
        wanted = dtype_of(name, dtype)
        if weight.ndim == 1:
            one = float("norm" in name and leaf == "weight")
            values = torch.full(weight.shape, one, device=device, dtype=wanted)
        else:
            fan_in = weight[0].numel() if leaf == "weight" else weight.numel()
            values = torch.randn(weight.shape, generator=generator, device=device, dtype=wanted)
            values *= fan_in**-0.5
        filled = torch.nn.Parameter(values, requires_grad=False)
        setattr(network.get_submodule(owner), leaf, filled)
    return network
