"""What a checkpoint's folder holds, what it takes of memory, and how many sessions fit a GPU.

Only headers and configs are read, and shapes computed with: no weight is loaded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from lingbot_triton.errors import BadRequest
from lingbot_triton.options import SessionOptions
from lingbot_triton.stages.budget import gpu_limit
from lingbot_triton.stages.compute import DTYPES, text_dtype_of
from lingbot_triton.world import checkpoint
from lingbot_triton.world.config import TransformerConfig
from lingbot_triton.world.dit import WorldTransformer, dtype_of
from lingbot_triton.world.errors import CheckpointError
from lingbot_triton.world.family import WORLD_FAST
from lingbot_triton.world.geometry import Geometry
from lingbot_triton.world.loading import read_config
from lingbot_triton.world.memory import charged_bytes, chunk_bytes, frame_bytes, session_bytes
from lingbot_triton.world.vae import memory_bytes, skeleton

CHUNK = WORLD_FAST.chunk_latent_frames

GIB = 2**30
_UNITS = {"": 1, "KIB": 2**10, "MIB": 2**20, "GIB": GIB, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_DIFFUSERS = ("transformer", "vae", "text_encoder", "tokenizer")
_CONTEXT_BYTES = GIB // 2
"""About what CUDA and its libraries take of a GPU for each process."""
_WORKERS = 4


@dataclass(frozen=True)
class Part:
    """One part of the model: where it is, and what its weights take."""

    name: str
    path: str
    layout: str
    parameters: int = 0
    stored_bytes: int = 0
    memory_bytes: int = 0
    """In the dtype that it is to be computed in."""


@dataclass
class Inspection:
    """What was found; all sizes are bytes."""

    parts: list[Part] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """What each part that is not there, or cannot be used, was told about."""
    network: dict[str, Any] | None = None
    dtype: str = ""
    height: int = 0
    width: int = 0
    cache_frames: int = 0
    kv_bytes_per_frame: int = 0
    session_bytes: int = 0
    """Keys and values of a session's frames and prompt."""
    chunk_bytes: int = 0
    """In addition, while a chunk is being made."""
    encoder_bytes: int = 0
    """What the VAE's encoder keeps of a session's frames, until its conditions are constant."""
    decoder_bytes: int = 0
    gpu_bytes: int = 0
    sessions_alone: int | None = None
    """Sessions whose denoise fits a GPU that does nothing else."""
    sessions_together: int | None = None
    """Sessions that fit a GPU that all four models share."""

    @property
    def weight_bytes(self) -> int:
        return sum(part.memory_bytes for part in self.parts)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"weight_bytes": self.weight_bytes}


def parse_bytes(text: str) -> int:
    """Bytes from "80GiB", "141 GB" or a plain number; raises ValueError."""
    match = re.fullmatch(r"([0-9.]+)\s*([A-Za-z]*)", text.strip())
    try:
        assert match is not None
        return int(float(match[1]) * _UNITS[match[2].upper()])
    except (AssertionError, KeyError, ValueError):
        raise ValueError(f"{text!r} is no amount of memory, such as 80GiB") from None


def inspect(
    root: Path,
    companions: Path,
    *,
    area: int,
    options: SessionOptions,
    dtype: str = "bfloat16",
    vae_dtype: str = "float32",
    gpu_bytes: int = 0,
) -> Inspection:
    """Look into the folder of a transformer and that of its companions, often the same one.

    Sessions are of a 16:9 picture at `area`, with the cache that `options` ask for. Parts that
    are missing are told, not raised.
    """
    geometry = Geometry.fit(9, 16, area)
    found = Inspection(dtype=dtype, height=geometry.height, width=geometry.width)
    found.gpu_bytes = gpu_bytes
    config = _look(found, lambda: _transformer(found, root, DTYPES[dtype]))
    vae_itemsize = DTYPES[vae_dtype].itemsize
    _look(found, lambda: _vae(found, companions, geometry, vae_itemsize))
    _look(found, lambda: _text_encoder(found, companions, text_dtype_of(DTYPES[dtype]).itemsize))
    _look(found, lambda: _tokenizer(found, companions))
    if config is not None:
        itemsize = DTYPES[dtype].itemsize
        found.network = asdict(config)
        found.cache_frames = options.cache_latent_frames(CHUNK)
        found.kv_bytes_per_frame = frame_bytes(config, geometry, itemsize)
        found.session_bytes = session_bytes(config, found.cache_frames, geometry, itemsize)
        found.chunk_bytes = chunk_bytes(config, CHUNK, geometry, itemsize)
        if gpu_bytes:
            _fit(found, config, geometry, itemsize)
    return found


def inspect_for(
    root: Path,
    companions: Path,
    *,
    area: int,
    window: int | None,
    chunks: int,
    gpu_memory: str | None,
    dtype: str,
    vae_dtype: str,
) -> Inspection:
    """The same from what is typed; raises ValueError for what makes no sense."""
    for name in (dtype, vae_dtype):
        if name not in DTYPES:
            raise ValueError(f"dtype is {name!r}; it must be one of {', '.join(DTYPES)}")
    if not root.is_dir():
        raise ValueError(f"{root} is no folder")
    try:
        return inspect(
            root,
            companions,
            area=area,
            options=SessionOptions(chunk_count=chunks, kv_window_frames=window),
            dtype=dtype,
            vae_dtype=vae_dtype,
            gpu_bytes=parse_bytes(gpu_memory) if gpu_memory else 0,
        )
    except BadRequest as error:
        raise ValueError(str(error)) from None


def _look(found: Inspection, look: Any) -> Any:
    try:
        return look()
    except CheckpointError as error:
        found.missing.append(str(error))
        return None


def _part(name: str, path: Path, files: Iterable[Path], counts: dict[int, int]) -> Part:
    """`counts` are numbers of parameters by the bytes each of them takes."""
    return Part(
        name,
        str(path),
        "diffusers" if path.name in _DIFFUSERS else "native",
        sum(counts.values()),
        sum(file.stat().st_size for file in files),
        sum(itemsize * count for itemsize, count in counts.items()),
    )


def _transformer(found: Inspection, root: Path, dtype: torch.dtype) -> TransformerConfig:
    folder = checkpoint.find_transformer(root)
    config = read_config(folder)
    with torch.device("meta"):
        network = WorldTransformer(config)
    counts: dict[int, int] = {}
    for name, weight in network.named_parameters():
        itemsize = dtype_of(name, dtype).itemsize
        counts[itemsize] = counts.get(itemsize, 0) + weight.numel()
    found.parts.append(_part("transformer", folder, checkpoint.weight_files(folder), counts))
    return config


def _vae(found: Inspection, root: Path, geometry: Geometry, itemsize: int) -> None:
    vae, weights, path = skeleton(root)
    files = checkpoint.weight_files(path) if path.is_dir() else [path]
    counts = {itemsize: sum(weight.numel() for weight in weights.values())}
    found.parts.append(_part("VAE", path, files, counts))
    kept = memory_bytes(vae, geometry.height, geometry.width, itemsize)
    found.encoder_bytes, found.decoder_bytes = kept


def _text_encoder(found: Inspection, root: Path, itemsize: int) -> None:
    path = checkpoint.find_text_encoder(root)
    files = checkpoint.weight_files(path) if path.is_dir() else [path]
    sizes = {
        name.removeprefix("encoder.").replace("shared.", "embed_tokens."): math.prod(shape)
        for name, shape in checkpoint.shapes(files).items()
    }
    found.parts.append(_part("text encoder", path, files, {itemsize: sum(sizes.values())}))


def _tokenizer(found: Inspection, root: Path) -> None:
    path = checkpoint.find_tokenizer(root)
    found.parts.append(_part("tokenizer", path, [path / "tokenizer.json"], {}))


def _fit(found: Inspection, config: TransformerConfig, geometry: Geometry, itemsize: int) -> None:
    """How many sessions a worker's budget admits, all of them with a chunk in work at once."""
    network = next(part.memory_bytes for part in found.parts if part.name == "transformer")

    def count(weights: int, processes: int, vae_bytes: int) -> int:
        left = found.gpu_bytes - weights - processes * _CONTEXT_BYTES
        session = charged_bytes(config, found.cache_frames, CHUNK, geometry, itemsize, vae_bytes)
        return max(0, gpu_limit(left) // session)

    found.sessions_alone = count(network, 1, 0)
    if not found.missing:
        vae_bytes = found.encoder_bytes + found.decoder_bytes
        found.sessions_together = count(found.weight_bytes, _WORKERS, vae_bytes)
