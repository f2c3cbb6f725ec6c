"""Where and how a stage computes: device, number format, threads; and how long it takes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lingbot_triton.settings import Settings

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def text_dtype_of(dtype: torch.dtype) -> torch.dtype:
    """What the text encoder computes in: umT5 overflows in float16, and comes in bfloat16."""
    return torch.bfloat16 if dtype == torch.float16 else dtype


@dataclass(frozen=True)
class DeviceConfig:
    """The settings of a stage, as torch wants them."""

    root: Path
    companions: Path
    """Where VAE, text encoder and tokenizer are; the root unless told otherwise."""
    device: torch.device
    dtype: torch.dtype
    vae_dtype: torch.dtype

    @property
    def text_dtype(self) -> torch.dtype:
        return text_dtype_of(self.dtype)

    @classmethod
    def prepare(cls, settings: Settings) -> DeviceConfig:
        """Read the settings and set this process's thread count, where one is given.

        The embedded network is too small to share out: on a busy machine its threads would spend
        their time waiting for each other.
        """
        threads = settings.threads or (1 if settings.embedded else 0)
        if threads > 0:
            torch.set_num_threads(threads)
        device = find_device(settings.device)
        if device.type == "cuda":
            torch.cuda.set_device(device)  # events and kernels of packages go to the current one
        return cls(
            Path(settings.checkpoint),
            Path(settings.companions or settings.checkpoint),
            device,
            DTYPES[settings.dtype],
            DTYPES[settings.vae_dtype],
        )


def find_device(name: str) -> torch.device:
    """The device called `name`; `auto` is the first GPU where torch sees one, else the CPU."""
    if name == "auto":
        name = "cuda:0" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def device_name(device: torch.device) -> str:
    """What the device is called: a GPU's product name, or `cpu`."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def to_device(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """The array as a tensor of its own: Triton's buffers are read-only, and not ours to keep."""
    return torch.from_numpy(np.array(array)).to(device)


class Stopwatch:
    """Milliseconds between marks, taken on the device and read once, without stopping it."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._events: list[torch.cuda.Event] = []
        self._seconds: list[float] = []
        self.mark()

    def mark(self) -> None:
        """Note the point the device reaches when its work so far is done."""
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._events.append(event)
        else:
            self._seconds.append(time.perf_counter())

    def read(self) -> NDArray[np.float32]:
        """Milliseconds from each mark to the next, float32 [marks - 1]; waits for the last mark."""
        if not self._cuda:
            return np.diff(np.array(self._seconds) * 1000).astype(np.float32)
        self._events[-1].synchronize()
        pairs = zip(self._events, self._events[1:], strict=False)
        return np.array([start.elapsed_time(end) for start, end in pairs], dtype=np.float32)
