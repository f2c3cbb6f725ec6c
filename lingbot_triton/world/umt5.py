"""The encoder of umT5, after transformers' UMT5EncoderModel.

Layers, names of weights and numbers are those of that class, bit for bit, with attention by torch's
`scaled_dot_product_attention`; it costs none of its seconds of imports. One prompt at a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class UMT5Config:
    """Sizes of the encoder, under transformers' names; the defaults are what configs omit."""

    vocab_size: int = 250112
    d_model: int = 512
    d_kv: int = 64
    d_ff: int = 1024
    num_layers: int = 8
    num_heads: int = 6
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    layer_norm_epsilon: float = 1e-6

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> UMT5Config:
        """From a parsed config.json; raises ValueError for another feed-forward layer."""
        kind = config.get("feed_forward_proj", "gated-gelu")
        if kind != "gated-gelu":
            raise ValueError(f"feed_forward_proj is {kind!r}; umT5 has 'gated-gelu'")
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in config.items() if name in known})


class LayerNorm(nn.Module):
    """Root-mean-square norm; the mean square is float32 whatever the tokens are."""

    def __init__(self, config: UMT5Config) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.d_model))
        self.eps = config.layer_norm_epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        square = x.float().pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(square + self.eps)
        return self.weight * x.to(self.weight.dtype)


def _embedding(rows: int, width: int) -> nn.Embedding:
    """An embedding without values, since weights are loaded into it.

    Giving it random ones on the meta device would import torch's compiler, for a second and a half.
    """
    empty = torch.empty(rows, width)
    embedding: nn.Embedding = nn.Embedding.from_pretrained(empty)  # type: ignore[no-untyped-call]
    return embedding


class SelfAttention(nn.Module):
    """Attention without scaling, with a learned bias by distance."""

    def __init__(self, config: UMT5Config) -> None:
        super().__init__()
        self.heads, self.width = config.num_heads, config.d_kv
        self.buckets = config.relative_attention_num_buckets // 2
        self.max_distance = config.relative_attention_max_distance
        inner = self.heads * self.width
        self.q, self.k, self.v = (nn.Linear(config.d_model, inner, bias=False) for _ in range(3))
        self.o = nn.Linear(inner, config.d_model, bias=False)
        self.relative_attention_bias = _embedding(2 * self.buckets, self.heads)

    def _bias(self, length: int) -> torch.Tensor:
        """Added to the scores, [1, heads, length, length]; distances share buckets."""
        positions = torch.arange(length, device=self.q.weight.device)
        offset = positions[None] - positions[:, None]
        distance = offset.abs()
        exact = self.buckets // 2  # half of the buckets hold one distance each
        share = torch.log(distance.float() / exact) / math.log(self.max_distance / exact)
        far = exact + (share * (self.buckets - exact)).long()
        bucket = torch.where(distance < exact, distance, far.clamp(max=self.buckets - 1))
        bias: torch.Tensor = self.relative_attention_bias(bucket + (offset > 0) * self.buckets)
        return bias.permute(2, 0, 1).unsqueeze(0).contiguous()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            project(x).view(1, -1, self.heads, self.width).transpose(1, 2)
            for project in (self.q, self.k, self.v)
        )
        out = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=self._bias(x.shape[1]), scale=1.0
        )
        mixed: torch.Tensor = self.o(out.transpose(1, 2).reshape(1, x.shape[1], -1))
        return mixed


class GatedFeedForward(nn.Module):
    """Feed-forward whose inner values are gated by a GELU."""

    def __init__(self, config: UMT5Config) -> None:
        super().__init__()
        self.wi_0 = nn.Linear(config.d_model, config.d_ff, bias=False)
        self.wi_1 = nn.Linear(config.d_model, config.d_ff, bias=False)
        self.wo = nn.Linear(config.d_ff, config.d_model, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = self.wi_0(x)
        cubic = math.sqrt(2.0 / math.pi) * (gate + 0.044715 * torch.pow(gate, 3.0))
        gate = 0.5 * gate * (1.0 + torch.tanh(cubic))
        out: torch.Tensor = self.wo(gate * self.wi_1(x))
        return out


class Block(nn.Module):
    """Self attention and feed-forward, each after a norm and added to its input."""

    def __init__(self, config: UMT5Config) -> None:
        super().__init__()
        attention, feed = (nn.Module() for _ in range(2))
        attention.SelfAttention, attention.layer_norm = SelfAttention(config), LayerNorm(config)
        feed.DenseReluDense, feed.layer_norm = GatedFeedForward(config), LayerNorm(config)
        self.layer = nn.ModuleList((attention, feed))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        attention, feed = self.layer
        x = x + attention.SelfAttention(attention.layer_norm(x))  # type: ignore[operator]
        out: torch.Tensor = x + feed.DenseReluDense(feed.layer_norm(x))  # type: ignore[operator]
        return out


class UMT5Encoder(nn.Module):
    """Token ids [1, n] to embeddings [1, n, d_model]."""

    def __init__(self, config: UMT5Config) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = _embedding(config.vocab_size, config.d_model)
        self.block = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.final_layer_norm = LayerNorm(config)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(ids)
        for block in self.block:
            x = block(x)
        out: torch.Tensor = self.final_layer_norm(x)
        return out
