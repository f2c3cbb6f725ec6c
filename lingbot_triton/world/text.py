"""Prompt to embedding: cleaning, tokens, umT5 encoder."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import ftfy
import torch
from tokenizers import Tokenizer

from lingbot_triton.world import checkpoint
from lingbot_triton.world.errors import CheckpointError, InputError
from lingbot_triton.world.umt5 import UMT5Config, UMT5Encoder

MAX_TOKENS = 512
"""Tokens of the longest prompt, the end mark included."""

_NATIVE_NAMES = (
    (r"^token_embedding\.", "embed_tokens."),
    (r"^norm\.", "final_layer_norm."),
    (r"^blocks\.(\d+)\.norm1\.", r"block.\1.layer.0.layer_norm."),
    (r"^blocks\.(\d+)\.norm2\.", r"block.\1.layer.1.layer_norm."),
    (r"^blocks\.(\d+)\.attn\.", r"block.\1.layer.0.SelfAttention."),
    (
        r"^blocks\.(\d+)\.pos_embedding\.embedding\.",
        r"block.\1.layer.0.SelfAttention.relative_attention_bias.",
    ),
    (r"^blocks\.(\d+)\.ffn\.gate\.0\.", r"block.\1.layer.1.DenseReluDense.wi_0."),
    (r"^blocks\.(\d+)\.ffn\.fc1\.", r"block.\1.layer.1.DenseReluDense.wi_1."),
    (r"^blocks\.(\d+)\.ffn\.fc2\.", r"block.\1.layer.1.DenseReluDense.wo."),
    (r"^shared\.", "embed_tokens."),
    (r"^encoder\.", ""),
)


def converted_name(name: str) -> str:
    """What a weight of umT5's own file is called in transformers; other names stay as they are."""
    for pattern, replacement in _NATIVE_NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def clean_prompt(prompt: str) -> str:
    """Mended encoding, HTML entities resolved (twice: they come nested), single spaces."""
    text = html.unescape(html.unescape(ftfy.fix_text(prompt)))
    return re.sub(r"\s+", " ", text).strip()


class TextEncoder:
    """umT5 and its tokenizer; holds no state between prompts."""

    def __init__(self, tokenizer: Tokenizer, encoder: UMT5Encoder) -> None:
        self.tokenizer = tokenizer
        self.encoder = encoder

    @classmethod
    def load(cls, root: Path, device: torch.device, dtype: torch.dtype) -> TextEncoder:
        """From a checkpoint in either layout; raises CheckpointError where it does not fit."""
        folder = checkpoint.find_tokenizer(root)
        try:
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:
            raise CheckpointError(f"{folder}/tokenizer.json cannot be read: {error}") from None
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return cls(tokenizer, _load_encoder(checkpoint.find_text_encoder(root), device, dtype))

    def tokenize(self, prompt: str) -> list[int]:
        """Token ids of the cleaned prompt, end mark last; InputError beyond 512 of them."""
        ids: list[int] = self.tokenizer.encode(clean_prompt(prompt)).ids
        if len(ids) > MAX_TOKENS:
            raise InputError(f"the prompt has {len(ids)} tokens; at most {MAX_TOKENS} are allowed")
        return ids

    def encode(self, prompt: str) -> torch.Tensor:
        """The prompt's embedding, float32 [tokens, text_dim], at its real length."""
        device = next(self.encoder.parameters()).device
        ids = torch.tensor([self.tokenize(prompt)], device=device)
        embedded: torch.Tensor = self.encoder(ids)
        return embedded[0].float()


def _load_encoder(path: Path, device: torch.device, dtype: torch.dtype) -> UMT5Encoder:
    if path.is_dir():
        try:
            config = UMT5Config.read(checkpoint.read_json(path / "config.json"))
        except ValueError as error:
            raise CheckpointError(f"{path} holds no umT5 encoder: {error}") from None
        files = checkpoint.weight_files(path)
    else:
        files = [path]
        config = _config_of({name: tensor.shape for name, tensor in _renamed(files)}, path)
    with torch.device("meta"):
        encoder = UMT5Encoder(config).eval()
    checkpoint.load(encoder, _renamed(files, device), device, lambda _: dtype, str(path))
    return encoder


def _renamed(
    files: Iterable[Path], device: torch.device | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Weights under transformers' names; a tied embedding that is stored twice comes once."""
    names = set()
    for path in files:
        for name, tensor in checkpoint.read(path, device or torch.device("cpu")):
            name = converted_name(name)
            if name not in names:
                names.add(name)
                yield name, tensor


def _config_of(shapes: dict[str, torch.Size], path: Path) -> UMT5Config:
    """A native file comes without a config: all sizes are in its weights."""
    attention, feed = "block.0.layer.0.SelfAttention.", "block.0.layer.1.DenseReluDense."
    try:
        vocabulary, width = shapes["embed_tokens.weight"]
        buckets, heads = shapes[f"{attention}relative_attention_bias.weight"]
        inner, ffn = shapes[f"{attention}q.weight"][0], shapes[f"{feed}wi_0.weight"][0]
    except KeyError as error:
        raise CheckpointError(f"{path} holds no umT5 encoder: {error} is missing") from None
    layers = {name.split(".")[1] for name in shapes if name.startswith("block.")}
    return UMT5Config(
        vocab_size=vocabulary,
        d_model=width,
        d_kv=inner // heads,
        d_ff=ffn,
        num_layers=len(layers),
        num_heads=heads,
        relative_attention_num_buckets=buckets,
    )
