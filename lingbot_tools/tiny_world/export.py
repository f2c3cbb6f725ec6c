"""The whole checkpoint in the released one's layout."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import UMT5Config, UMT5EncoderModel

import lingbot_triton
from lingbot_tools.tiny_world.network import TEXT_WIDTH
from lingbot_tools.tiny_world.scene import vocabulary
from lingbot_triton.world import text, vae_names
from lingbot_triton.world.config import TransformerConfig
from lingbot_triton.world.dit import dtype_of

Weights = dict[str, torch.Tensor]

VAE_FILE = "Wan2.1_VAE.pth"
TRANSFORMER_FOLDER = "lingbot_world_fast"
ENCODER_FILE = "models_t5_umt5-xxl-enc-bf16.pth"
TOKENIZER_FOLDER = "google/umt5-xxl"

_SHIPPED = Path(lingbot_triton.__file__).parent / "data" / "tiny-world"
_UNWRITTEN = ("patch_size", "text_dim")  # weights say them
_SPECIAL = ("<pad>", "</s>", "<unk>")


def to_native(weights: Weights, file: str, converted: Callable[[str], str]) -> Weights:
    """Weights under the names that they have in the released checkpoint's `file`.

    Names are `converted` the other way only, and do not depend on the width: those of the file that
    ships are converted, and looked up.
    """
    shipped = torch.load(_SHIPPED / file, map_location="meta", weights_only=True)
    natives = {converted(native): native for native in shipped}
    return {natives[name]: tensor for name, tensor in weights.items()}


def write_vae(root: Path, vae: Any) -> None:
    """Native names, float16: the service computes in the type that its settings name."""
    weights = to_native(vae.state_dict(), VAE_FILE, vae_names.converted_name)
    torch.save({name: tensor.half() for name, tensor in weights.items()}, root / VAE_FILE)


def write_transformer(root: Path, config: TransformerConfig, weights: Weights) -> None:
    """Weights in float16, those the network keeps in float32 in bfloat16's stead as they are."""
    folder = root / TRANSFORMER_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    content = {name: value for name, value in asdict(config).items() if name not in _UNWRITTEN}
    content |= {"_class_name": "WanModelFast", "model_type": "i2v"}
    (folder / "config.json").write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
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


def write_tokenizer(root: Path) -> None:
    """One token per word of the scenes' prompts, lower case; other words are all the same."""
    words = {word: index for index, word in enumerate((*_SPECIAL, *vocabulary()))}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", words["</s>"])]
    )
    tokenizer.add_special_tokens(list(_SPECIAL))
    folder = root / TOKENIZER_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"backend": "tokenizers", "tokenizer_class": "PreTrainedTokenizerFast"}
    special = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    content = settings | special | {"model_max_length": 512}
    lines = json.dumps(content, indent=2, sort_keys=True)
    (folder / "tokenizer_config.json").write_text(lines + "\n")


def write_encoder(root: Path, seed: int) -> None:
    """A frozen random encoder of one layer, bfloat16 under native names.

    It stays as it is drawn: prompts come from a short vocabulary, and all that the network needs
    is that their embeddings differ.
    """
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {"d_model": TEXT_WIDTH, "d_kv": 16, "d_ff": 96, "num_heads": 4}
    sizes |= {"vocab_size": len(_SPECIAL) + len(vocabulary()), "num_layers": 1}
    encoder = UMT5EncoderModel(UMT5Config(dropout_rate=0.0, **sizes)).encoder
    weights = to_native(encoder.state_dict(), ENCODER_FILE, text.converted_name)
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in weights.items()}
    torch.save(weights, root / ENCODER_FILE)
