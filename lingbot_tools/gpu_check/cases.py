"""What is measured: networks of random weights, sizes, windows; and how: time, memory, work."""

from __future__ import annotations

import resource
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.benchmark import Timer, timer
from torch.utils.flop_counter import FlopCounterMode

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
    vae_width: int  # `base_dim`
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


PEAKS = {
    "B200": 2250e12,
    "GH200": 989e12,
    "H200": 989e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "RTX 4090": 165e12,
}
"""Dense bfloat16 operations a second, from the vendor's data sheets; longest names first."""


def random_network(
    config: TransformerConfig, device: torch.device, dtype: torch.dtype
) -> WorldTransformer:
    """A network of random weights, made on the device: tokens neither vanish nor grow in it."""
    with torch.device("meta"):
        network = WorldTransformer(config).eval()
    generator = torch.Generator(device).manual_seed(0)
    weights = {}
    for name, meta in network.named_parameters():
        is_weight, wanted = name.endswith(".weight"), dtype_of(name, dtype)
        if meta.ndim == 1:
            one = float("norm" in name and is_weight)
            weights[name] = torch.full(meta.shape, one, device=device, dtype=wanted)
        else:
            fan_in = meta[0].numel() if is_weight else meta.numel()
            drawn = torch.randn(meta.shape, generator=generator, device=device, dtype=wanted)
            weights[name] = drawn.mul_(fan_in**-0.5)
    network.load_state_dict(weights, assign=True)
    return network.requires_grad_(False)


def peak(gpu: str) -> float | None:
    """Operations a second of the GPU of this product name, None where it is not known."""
    return next((value for name, value in PEAKS.items() if name in gpu), None)


def timed(work: Callable[[], Any]) -> float:
    """Milliseconds until the device has done `work`, once."""
    started = timer()
    work()
    return (timer() - started) * 1000


def mean_ms(work: Callable[[], Any], repeats: int) -> float:
    """Mean of `repeats` in a row, after a warm-up."""
    measured = Timer("work()", globals={"work": work}, num_threads=torch.get_num_threads())
    return round(measured.timeit(repeats).mean * 1000, 3)


def count_flops(device: torch.device, work: Callable[[], Any]) -> int:
    """Floating-point operations of `work`."""
    # Torch counts no fused attention on a CPU; on a GPU the plain one would take too much memory.
    attention = sdpa_kernel(SDPBackend.MATH) if device.type == "cpu" else nullcontext()
    with attention, FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


def memory_bytes(device: torch.device) -> tuple[int, int]:
    """What tensors take of a GPU's memory, and the most they took; twice that on a CPU."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return most, most
