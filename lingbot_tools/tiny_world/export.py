"""The whole checkpoint in the released one's layout."""

from __future__ import annotations

import json
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
from lingbot_triton.world.config import TransformerConfig
from lingbot_triton.world.dit import dtype_of
from lingbot_triton.world.vae_names import converted_name

Weights = dict[str, torch.Tensor]

VAE_FILE = "Wan2.1_VAE.pth"
TRANSFORMER_FOLDER = "lingbot_world_fast"
ENCODER_FILE = "models_t5_umt5-xxl-enc-bf16.pth"
TOKENIZER_FOLDER = "google/umt5-xxl"

_SHIPPED = Path(lingbot_triton.__file__).parent / "data" / "tiny-world"
_UNWRITTEN = ("patch_size", "text_dim")  # weights say them
_SPECIAL = ("<pad>", "</s>", "<unk>")
_NATIVE_NAMES = {
    "embed_tokens": "token_embedding",
    "final_layer_norm": "norm",
    "block.0.layer.0.layer_norm": "blocks.0.norm1",
    "block.0.layer.1.layer_norm": "blocks.0.norm2",
    "block.0.layer.0.SelfAttention.relative_attention_bias": "blocks.0.pos_embedding.embedding",
    "block.0.layer.0.SelfAttention": "blocks.0.attn",
    "block.0.layer.1.DenseReluDense.wi_0": "blocks.0.ffn.gate.0",
    "block.0.layer.1.DenseReluDense.wi_1": "blocks.0.ffn.fc1",
    "block.0.layer.1.DenseReluDense.wo": "blocks.0.ffn.fc2",
}
"""The text encoder's, transformers' to native."""


def to_native(weights: Weights) -> Weights:
    """Weights of diffusers' AutoencoderKLWan under their native names.

    Names are converted the other way only, and do not depend on the width: those of the file that
    ships are converted, and looked up.
    """
    shipped = torch.load(_SHIPPED / VAE_FILE, map_location="meta", weights_only=True)
    natives = {converted_name(native): native for native in shipped}
    return {natives[name]: tensor for name, tensor in weights.items()}


def write_vae(root: Path, vae: Any) -> None:
    """Native names, float16: the service computes in the type that its settings name."""
    weights = {name: tensor.half() for name, tensor in to_native(vae.state_dict()).items()}
    torch.save(weights, root / VAE_FILE)


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
    settings = {
        "backend": "tokenizers",
        "eos_token": "</s>",
        "model_max_length": 512,
        "pad_token": "<pad>",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def write_encoder(root: Path, seed: int) -> None:
    """A frozen random encoder of one layer, bfloat16 under native names.

    It stays as it is drawn: prompts come from a short vocabulary, and all that the network needs
    is that their embeddings differ.
    """
    torch.manual_seed(seed)
    config = UMT5Config(
        vocab_size=len(_SPECIAL) + len(vocabulary()),
        d_model=TEXT_WIDTH,
        d_kv=16,
        d_ff=96,
        num_layers=1,
        num_heads=4,
        dropout_rate=0.0,
    )
    weights = {}
    for name, tensor in UMT5EncoderModel(config).encoder.state_dict().items():
        for theirs, native in _NATIVE_NAMES.items():
            name = name.replace(theirs, native)
        weights[name] = tensor.to(torch.bfloat16)
    torch.save(weights, root / ENCODER_FILE)
