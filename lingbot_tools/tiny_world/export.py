"""The whole checkpoint in the released one's layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from lingbot_tools.tiny_world.vae_export import Weights, to_native
from lingbot_tools.tiny_world.words import write_encoder, write_tokenizer
from lingbot_triton.world.config import TransformerConfig
from lingbot_triton.world.dit import dtype_of

VAE_FILE = "Wan2.1_VAE.pth"
TRANSFORMER_FOLDER = "lingbot_world_fast"
MOST_BYTES = 16_000_000


def write_vae(root: Path, vae: Any) -> None:
    """Native names, float16: the service computes in the type that its settings name."""
    weights = {name: tensor.half() for name, tensor in to_native(vae.state_dict()).items()}
    torch.save(weights, root / VAE_FILE)


def write_transformer(root: Path, config: TransformerConfig, weights: Weights) -> None:
    """Weights in float16, those the network keeps in float32 in bfloat16's stead as they are."""
    folder = root / TRANSFORMER_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "_class_name": "WanModelFast",
        "control_type": config.control_type,
        "dim": config.dim,
        "eps": config.eps,
        "ffn_dim": config.ffn_dim,
        "freq_dim": config.freq_dim,
        "in_dim": config.in_dim,
        "model_type": "i2v",
        "num_heads": config.num_heads,
        "num_layers": config.num_layers,
        "out_dim": config.out_dim,
        "text_len": config.text_len,
    }
    (folder / "config.json").write_text(json.dumps(content, indent=2) + "\n")
    tensors = {
        name: tensor.to(dtype_of(name, torch.float16) if tensor.ndim < 2 else torch.float16)
        for name, tensor in weights.items()
    }
    file = "diffusion_pytorch_model-00001-of-00001.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / file)
    total = sum(tensor.numel() * tensor.itemsize for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict.fromkeys(sorted(tensors), file)}
    name = "diffusion_pytorch_model.safetensors.index.json"
    (folder / name).write_text(json.dumps(index, indent=1) + "\n")


def write_text(root: Path, seed: int) -> None:
    root.mkdir(parents=True, exist_ok=True)
    write_tokenizer(root)
    write_encoder(root, seed)


def size_of(root: Path) -> int:
    """Bytes of all files below `root`."""
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
