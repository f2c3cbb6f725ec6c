"""Milliseconds on a device, bytes of its memory, and operations of the network."""

from __future__ import annotations

import resource
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.benchmark import Timer, timer
from torch.utils.flop_counter import FlopCounterMode

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


def count_operations(device: torch.device, work: Callable[[], Any]) -> int:
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
