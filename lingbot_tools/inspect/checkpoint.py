"""What a checkpoint holds, takes of memory, and how many sessions fit a GPU: no weight is read."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from lingbot_triton.options import SessionOptions
from lingbot_triton.settings import Settings
from lingbot_triton.stage import STAGES
from lingbot_triton.stages.budget import gpu_limit
from lingbot_triton.stages.compute import DTYPES, text_dtype_of
from lingbot_triton.world import checkpoint
from lingbot_triton.world.dit import WorldTransformer, dtype_of
from lingbot_triton.world.errors import CheckpointError
from lingbot_triton.world.family import find_family
from lingbot_triton.world.geometry import Geometry
from lingbot_triton.world.loading import read_config
from lingbot_triton.world.memory import charged_bytes, frame_bytes, session_bytes
from lingbot_triton.world.vae import memory_bytes, skeleton

GIB = 2**30
_UNITS = {"": 1, "KIB": 2**10, "MIB": 2**20, "GIB": GIB, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_DIFFUSERS = ("transformer", "vae", "text_encoder", "tokenizer")
_CONTEXT_BYTES = GIB // 2  # about what CUDA and its libraries take of a GPU for each process


@dataclass(frozen=True)
class Part:
    """One part of the model; `memory_bytes` in the dtype that it is to be computed in."""

    name: str
    path: str
    layout: str
    parameters: int
    stored_bytes: int
    memory_bytes: int


@dataclass
class Inspection:
    """What was found; all sizes are bytes.

    `session_bytes` are keys and values of a session's frames and prompt; `chunk_bytes` come while
    a chunk is being made, `encoder_bytes` until its conditions are constant. `sessions_alone` fit
    a GPU that only denoises, `sessions_together` one that all four models share.
    """

    dtype: str
    height: int
    width: int
    cache_frames: int
    gpu_bytes: int
    parts: list[Part] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    network: dict[str, Any] | None = None
    weight_bytes: int = 0
    kv_bytes_per_frame: int = 0
    session_bytes: int = 0
    chunk_bytes: int = 0
    encoder_bytes: int = 0
    decoder_bytes: int = 0
    sessions_alone: int | None = None
    sessions_together: int | None = None

    def add(self, name: str, path: Path, parameters: int = 0, memory: int = 0) -> None:
        layout = "diffusers" if path.name in _DIFFUSERS else "native"
        stored = sum(file.stat().st_size for file in _files(path)) if parameters else 0
        self.parts.append(Part(name, str(path), layout, parameters, stored, memory))
        self.weight_bytes += memory

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note what is missing, and go on."""
        try:
            yield
        except CheckpointError as error:
            self.missing.append(str(error))


def parse_bytes(text: str) -> int:
    """Bytes from "80GiB", "141 GB" or a plain number; raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError(f"{text!r} is no amount of memory, such as 80GiB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def inspect(
    settings: Settings, *, area: int, options: SessionOptions, gpu_bytes: int = 0
) -> Inspection:
    """Look into the folder of a transformer and that of its companions, often the same one.

    Sessions are of a 16:9 picture at `area`, with the cache that `options` ask for. Parts that
    are missing are named, not raised. Raises ValueError where there is no folder, and InputError.
    """
    root, companions = Path(settings.checkpoint), Path(settings.companions or settings.checkpoint)
    if not root.is_dir():
        raise ValueError(f"{root} is no folder")
    geometry, dtype = Geometry.fit(9, 16, area), DTYPES[settings.dtype]
    cached = options.cache_latent_frames(find_family(root).chunk_latent_frames)
    found = Inspection(settings.dtype, geometry.height, geometry.width, cached, gpu_bytes)
    with found.noting():
        _transformer(found, root, geometry, dtype)
    with found.noting():
        itemsize = DTYPES[settings.vae_dtype].itemsize
        vae, weights, path = skeleton(companions)
        count = sum(weight.numel() for weight in weights.values())
        found.add("VAE", path, count, count * itemsize)
        kept = memory_bytes(vae, geometry.height, geometry.width, itemsize)
        found.encoder_bytes, found.decoder_bytes = kept
    with found.noting():
        path = checkpoint.find_text_encoder(companions)
        sizes = {  # a tied embedding that is stored twice counts once
            name.removeprefix("encoder.").replace("shared.", "embed_tokens."): math.prod(shape)
            for name, shape in checkpoint.shapes(_files(path)).items()
        }
        count = sum(sizes.values())
        found.add("text encoder", path, count, count * text_dtype_of(dtype).itemsize)
    with found.noting():
        found.add("tokenizer", checkpoint.find_tokenizer(companions))
    if found.network and gpu_bytes:
        found.sessions_alone = _fit(found, found.parts[0].memory_bytes, 1, 0)
    if not found.missing and gpu_bytes:
        found.sessions_together = _fit(found, found.weight_bytes, len(STAGES), sum(kept))
    return found


def _transformer(found: Inspection, root: Path, geometry: Geometry, dtype: torch.dtype) -> None:
    chunk, folder = find_family(root).chunk_latent_frames, checkpoint.find_transformer(root)
    config, frames, size = read_config(folder), found.cache_frames, dtype.itemsize
    with torch.device("meta"):
        weights = list(WorldTransformer(config).named_parameters())
    memory = sum(dtype_of(name, dtype).itemsize * weight.numel() for name, weight in weights)
    found.add("transformer", folder, sum(weight.numel() for _, weight in weights), memory)
    found.network = asdict(config)
    found.kv_bytes_per_frame = frame_bytes(config, geometry, size)
    found.session_bytes = session_bytes(config, frames, geometry, size)
    found.chunk_bytes = charged_bytes(config, frames, chunk, geometry, size) - found.session_bytes


def _files(path: Path) -> list[Path]:
    return checkpoint.weight_files(path) if path.is_dir() else [path]


def _fit(found: Inspection, weights: int, processes: int, vae_bytes: int) -> int:
    """How many sessions a worker's budget admits, all of them with a chunk in work at once."""
    left = found.gpu_bytes - weights - processes * _CONTEXT_BYTES
    return max(0, gpu_limit(left) // (found.session_bytes + found.chunk_bytes + vae_bytes))
