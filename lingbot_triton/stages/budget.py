"""How much memory sessions may take: accounted before it is allocated, never found out after."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import torch

from lingbot_triton.errors import SessionLimit
from lingbot_triton.stages.compute import DeviceConfig
from lingbot_triton.world.errors import CheckpointError

log = logging.getLogger(__name__)

GPU_PART = 0.9
"""Part of the GPU's memory left by the weights that sessions may take; the rest is for the work."""

MAIN_PART = 0.5
"""Part of the available main memory that sessions may take where there is no GPU."""

MEMINFO = Path("/proc/meminfo")

SessionBytes = Callable[[int, int], int]
"""What a session of frames of H x W pixels takes of a measured memory in other processes."""


class MemoryBudget:
    """Bytes that a worker has promised its sessions, never more than `limit`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0

    def take(self, needed: int) -> None:
        """Promise `needed` bytes to one more session; raises SessionLimit where they are not."""
        if self.taken + needed > self.limit:
            free = _mebibytes(max(0, self.limit - self.taken))
            raise SessionLimit(
                f"the session needs {_mebibytes(needed)} of memory; "
                f"{free} of {_mebibytes(self.limit)} are free"
            )
        self.taken += needed

    def give_back(self, given: int) -> None:
        """A session has let go of what it was promised."""
        self.taken -= given


def gpu_limit(free_bytes: int) -> int:
    """What sessions may take of a GPU where that much is free beside the weights."""
    return int(free_bytes * GPU_PART)


def measure(device: torch.device) -> int:
    """What sessions may take of the device's memory, while this process holds its weights only."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return gpu_limit(free + kept)
    for line in MEMINFO.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(int(value.split()[0]) * 1024 * MAIN_PART)
    raise OSError(f"{MEMINFO} does not say how much memory is available")


def find_vae_session_bytes(compute: DeviceConfig, budget_bytes: int) -> SessionBytes | None:
    """The VAE's memory of a session, where a GPU is measured, which it mostly is on as well.

    A budget that is given is denoise's alone, and of the main memory half is left in any case.
    Where there is no VAE, or nothing to read it with, there is nothing beside.
    """
    if budget_bytes or compute.device.type != "cuda":
        return None
    try:
        from lingbot_triton.world.vae import session_memory

        return session_memory(compute.companions, compute.vae_dtype)
    except (ImportError, CheckpointError) as error:
        log.info("what the VAE takes of a session is not counted: %s", error)
        return None


def ran_out(error: BaseException) -> bool:
    """Whether an allocation failed for want of memory."""
    kinds = (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, kinds) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"
