"""Finding a checkpoint's parts on disk and loading their weights.

Two layouts are known, part by part, and may be mixed; the transformer may also have a folder of its
own, apart from its companions:

    native                                      diffusers
    lingbot_world_fast/ (or at the root)        transformer/
    Wan2.1_VAE.pth or .safetensors              vae/
    models_t5_umt5-xxl-enc-bf16.pth             text_encoder/
    google/umt5-xxl/                            tokenizer/
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from lingbot_triton.world.errors import CheckpointError

DtypeOf = Callable[[str], torch.dtype]
"""The dtype a weight of this name is wanted in."""

_TRANSFORMER = ("lingbot_world_fast", "transformer", ".")
_VAE = ("Wan2.1_VAE.pth", "Wan2.1_VAE.safetensors", "vae/config.json")
_TEXT_ENCODER = (
    "models_t5_umt5-xxl-enc-bf16.pth",
    "models_t5_umt5-xxl-enc-bf16.safetensors",
    "text_encoder/config.json",
)
_TOKENIZER = ("google/umt5-xxl/tokenizer.json", "tokenizer/tokenizer.json")
_NAMED_MOST = 5
_APART = "; where it lies apart from the transformer, LINGBOT_COMPANIONS names its folder"


def find_transformer(root: Path) -> Path:
    """The folder with the transformer's config.json and weights."""
    return _find(root, "transformer", [f"{folder}/config.json" for folder in _TRANSFORMER]).parent


def find_vae(root: Path) -> Path:
    """The native weight file, or the folder of a diffusers AutoencoderKLWan."""
    return _folder_of(_find(root, "VAE", _VAE, _APART))


def find_text_encoder(root: Path) -> Path:
    """The native weight file, or the folder of a transformers UMT5EncoderModel."""
    return _folder_of(_find(root, "text encoder", _TEXT_ENCODER, _APART))


def find_tokenizer(root: Path) -> Path:
    """The folder with tokenizer.json and tokenizer_config.json."""
    return _find(root, "tokenizer", _TOKENIZER, _APART).parent


def _folder_of(path: Path) -> Path:
    """Weights in one file are found by that, those of a folder by its config."""
    return path.parent if path.name == "config.json" else path


def _find(root: Path, what: str, candidates: Iterable[str], hint: str = "") -> Path:
    paths = [root / candidate for candidate in candidates]
    for path in paths:
        if path.exists():
            return path
    raise CheckpointError(
        f"no {what} in checkpoint {root}; looked for {', '.join(str(path) for path in paths)}{hint}"
    )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; raises CheckpointError where it is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds no JSON object")
    return content


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder: those its index names, or the only one there is."""
    indices = sorted(folder.glob("*.safetensors.index.json"))
    if len(indices) > 1:
        names = ", ".join(path.name for path in indices)
        raise CheckpointError(f"{folder} has more than one index: {names}")
    if indices:
        weight_map = read_json(indices[0]).get("weight_map")
        if not isinstance(weight_map, dict):
            raise CheckpointError(f"{indices[0]} has no weight_map")
        files = [folder / name for name in sorted(set(weight_map.values()))]
        missing = [path.name for path in files if not path.is_file()]
        if missing:
            raise CheckpointError(f"{indices[0]} names files that are missing: {_some(missing)}")
        return files
    files = sorted(folder.glob("*.safetensors"))
    if len(files) != 1:
        raise CheckpointError(
            f"{folder} needs a *.safetensors.index.json or exactly one *.safetensors file; "
            f"it has {len(files)}"
        )
    return files


def shapes(files: Iterable[Path]) -> dict[str, tuple[int, ...]]:
    """Every weight's shape, from the files' headers alone, or mapped."""
    found: dict[str, tuple[int, ...]] = {}
    for path in files:
        if path.suffix != ".safetensors":
            found |= {name: tuple(weight.shape) for name, weight in read(path, torch.device("cpu"))}
            continue
        with _open(path, "cpu") as shard:
            for name in shard.keys():  # noqa: SIM118
                found[name] = tuple(shard.get_slice(name).get_shape())
    return found


def read(path: Path, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
    """Weights of a .safetensors or .pth file, one at a time, in the file's own dtype.

    A .pth is mapped where it can be, not read whole; it is only unpickled with `weights_only`.
    """
    if path.suffix == ".safetensors":
        with _open(path, str(device)) as shard:
            for name in shard.keys():  # noqa: SIM118
                yield name, shard.get_tensor(name)
        return
    try:
        mapped = zipfile.is_zipfile(path)  # torch cannot map its old format
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:
        raise CheckpointError(f"{path} cannot be read as weights: {error}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}, not a dict of weights")
    for name, tensor in content.items():
        yield name, tensor.to(device)


def _open(path: Path, device: str) -> Any:
    from safetensors import safe_open  # gpu_check runs with nothing but torch

    try:
        return safe_open(path, "pt", device=device)
    except Exception as error:
        raise CheckpointError(f"{path} cannot be read as safetensors: {error}") from None


def load(
    module: torch.nn.Module,
    weights: Iterable[tuple[str, torch.Tensor]],
    device: torch.device,
    dtype_of: DtypeOf,
    source: str,
) -> None:
    """Fill a module built on the meta device, weight by weight, and freeze it.

    At no time is more than one weight held twice. Raises CheckpointError for names that are
    missing or unexpected and for shapes that differ.
    """
    wanted = dict(module.named_parameters(remove_duplicate=False))
    missing, unexpected, differing = set(wanted), [], []
    for name, tensor in weights:
        if name not in wanted:
            unexpected.append(name)
        elif wanted[name].shape != tensor.shape:
            differing.append(f"{name} {list(tensor.shape)}, not {list(wanted[name].shape)}")
            missing.discard(name)
        else:
            owner, _, leaf = name.rpartition(".")
            # A copy of its own: a mapped file must not stay open for as long as the weight lives.
            own = tensor.to(device, dtype_of(name), copy=True)
            setattr(module.get_submodule(owner), leaf, torch.nn.Parameter(own, requires_grad=False))
            missing.discard(name)
    complaints = [
        f"{label}: {_some(names)}"
        for label, names in (
            ("missing", sorted(missing)),
            ("unexpected", unexpected),
            ("of another shape", differing),
        )
        if names
    ]
    if complaints:
        raise CheckpointError(f"{source} does not fit; {'; '.join(complaints)}")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED_MOST} more" if len(names) > _NAMED_MOST else ""
    return ", ".join(names[:_NAMED_MOST]) + more
