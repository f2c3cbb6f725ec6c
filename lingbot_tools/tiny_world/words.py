"""A small text encoder and its tokenizer, in the released ones' layout.

The encoder stays as it is drawn: prompts come from a short vocabulary, and all that the network
needs is that their embeddings differ.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import UMT5Config, UMT5EncoderModel

from lingbot_tools.tiny_world.network import TEXT_WIDTH
from lingbot_tools.tiny_world.scene import vocabulary

ENCODER_FILE = "models_t5_umt5-xxl-enc-bf16.pth"
TOKENIZER_FOLDER = "google/umt5-xxl"

_SPECIAL = ("<pad>", "</s>", "<unk>")
_NATIVE_NAMES = (
    (r"^embed_tokens\.", "token_embedding."),
    (r"^final_layer_norm\.", "norm."),
    (r"^block\.(\d+)\.layer\.0\.layer_norm\.", r"blocks.\1.norm1."),
    (r"^block\.(\d+)\.layer\.1\.layer_norm\.", r"blocks.\1.norm2."),
    (
        r"^block\.(\d+)\.layer\.0\.SelfAttention\.relative_attention_bias\.",
        r"blocks.\1.pos_embedding.embedding.",
    ),
    (r"^block\.(\d+)\.layer\.0\.SelfAttention\.", r"blocks.\1.attn."),
    (r"^block\.(\d+)\.layer\.1\.DenseReluDense\.wi_0\.", r"blocks.\1.ffn.gate.0."),
    (r"^block\.(\d+)\.layer\.1\.DenseReluDense\.wi_1\.", r"blocks.\1.ffn.fc1."),
    (r"^block\.(\d+)\.layer\.1\.DenseReluDense\.wo\.", r"blocks.\1.ffn.fc2."),
)


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
    """A frozen random encoder of one layer, bfloat16 under native names."""
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
        for pattern, replacement in _NATIVE_NAMES:
            name = re.sub(pattern, replacement, name)
        weights[name] = tensor.to(torch.bfloat16)
    torch.save(weights, root / ENCODER_FILE)
