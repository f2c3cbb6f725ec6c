"""Milliseconds on a device, and bytes of its memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_PAGE = 4096


def timed(device: torch.device, work: Callable[[], Any]) -> float:
    """Milliseconds from the start of `work` on the device to its end there."""
    if device.type != "cuda":
        started = time.perf_counter()
        work()
        return (time.perf_counter() - started) * 1000
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def median_ms(device: torch.device, work: Callable[[], Any], repeats: int) -> float:
    """Median of `repeats`, after one call that does not count."""
    work()
    return round(statistics.median(timed(device, work) for _ in range(repeats)), 3)


def held_bytes(device: torch.device) -> int:
    """What tensors hold of a GPU's memory; of main memory, what the process holds."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def peak_bytes(device: torch.device) -> int:
    """The most they have held since `reset_peak`; of main memory, since the process began."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) * 1024


def reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
