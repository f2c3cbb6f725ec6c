"""The transformer's layers and what they remember of a session.

Submodule names are the checkpoint's; tokens are [s, dim] without a batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional

from lingbot_triton.world.attention import attend
from lingbot_triton.world.geometry import TransformerConfig
from lingbot_triton.world.kv_cache import KVCache, Slots
from lingbot_triton.world.rope import rotate, rotate_into

Rows = tuple[torch.Tensor, ...]
"""Modulation rows of one block, [dim] each: shift, 1 + scale, gate, then again for the ffn."""


@dataclass
class SessionCaches:
    """What the network remembers of one session."""

    frames: KVCache
    prompt: list[tuple[torch.Tensor, torch.Tensor]]
    """Per block the prompt's keys and values, [text_len, heads, head_dim]."""
    camera: list[tuple[torch.Tensor, torch.Tensor]]
    """Per block scale and shift of the chunk in work, [tokens, dim]."""
    grid: tuple[int, int, int]
    """Tokens of a chunk along frame, row and column."""
    slots: Slots = field(default_factory=lambda: Slots((), 0, 0))
    turn: torch.Tensor = field(default_factory=lambda: torch.empty(0))

    def release(self) -> None:
        """Let go of all memory; the session is over."""
        self.frames.keys.clear()
        self.frames.values.clear()
        self.prompt.clear()
        self.camera.clear()


class RMSNorm(nn.Module):
    """Root-mean-square norm over the full width, before heads are split."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def factor(self, x: torch.Tensor) -> torch.Tensor:
        """What tokens x [s, dim] are to be multiplied by before the weight, float32 [s, 1]."""
        norm: torch.Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        return norm.square_().mul_(1 / x.shape[-1]).add_(self.eps).rsqrt_()


class Attention(nn.Module):
    """Projections and norms of self and cross attention; tokens are [s, dim]."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        dim = config.dim
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.norm_q, self.norm_k = RMSNorm(dim, config.eps), RMSNorm(dim, config.eps)
        self.heads = (config.num_heads, config.head_dim)

    def turned_query(self, x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        """Normalised, rotated queries [s, heads, head_dim] of tokens x."""
        query = self.q(x)
        # The norm's factor is one number a token: it rides on the rotation, which is complex.
        turn = turn * self.norm_q.factor(query).unsqueeze(-1)
        return rotate(query.mul_(self.norm_q.weight).view(-1, *self.heads), turn)

    def store(self, x: torch.Tensor, caches: SessionCaches, layer: int) -> None:
        """Write keys and values of the chunk's tokens into the session's slots."""
        keys, values = caches.frames.keys[layer], caches.frames.values[layer]
        key = self.k(x)
        turn = caches.turn * self.norm_k.factor(key).unsqueeze(-1)
        key = key.mul_(self.norm_k.weight).view(-1, *self.heads)
        for slot, token, length in caches.slots.segments:
            tokens, slots = slice(token, token + length), slice(slot, slot + length)
            rotate_into(keys[slots], key[tokens], turn[tokens])
            out = values[slots].flatten(1)
            torch.addmm(self.v.bias, x[tokens], self.v.weight.t(), out=out)

    def prompt_query(self, x: torch.Tensor) -> torch.Tensor:
        """Queries [s, heads, head_dim] for `prompt_keys`."""
        query: torch.Tensor = self.q(x)
        return query.mul_(self.norm_q.factor(query)).view(-1, *self.heads)

    def prompt_keys(self, text: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [text_len, heads, head_dim] of the prompt.

        The weight of the queries' norm is in the keys: a product with it is a product with both.
        """
        key = self.k(text)
        weight = self.norm_k.weight.float() * self.norm_q.weight.float()
        key = (key * self.norm_k.factor(key) * weight).to(text.dtype)
        return key.view(-1, *self.heads), self.v(text).view(-1, *self.heads)


class Block(nn.Module):
    """One transformer block: self attention, camera, prompt, feed-forward."""

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        dim = config.dim
        self.layer = layer
        self.eps = config.eps
        self.modulation = nn.Parameter(torch.empty(1, 6, dim))
        self.self_attn = Attention(config)
        self.norm3 = nn.LayerNorm(dim, config.eps)
        self.cross_attn = Attention(config)
        self.ffn = nn.Sequential(
            nn.Linear(dim, config.ffn_dim), nn.GELU("tanh"), nn.Linear(config.ffn_dim, dim)
        )
        self.cam_injector_layer1, self.cam_injector_layer2 = (
            nn.Linear(dim, dim),
            nn.Linear(dim, dim),
        )
        self.cam_scale_layer, self.cam_shift_layer = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def read_camera(self, control: torch.Tensor, caches: SessionCaches) -> None:
        """Scale and shift for control tokens [s, dim], into the session's buffers."""
        hidden = self.cam_injector_layer2(functional.silu(self.cam_injector_layer1(control)))
        hidden += control
        layers = (self.cam_scale_layer, self.cam_shift_layer)
        for linear, out in zip(layers, caches.camera[self.layer], strict=True):
            torch.addmm(linear.bias, hidden, linear.weight.t(), out=out)

    def store(self, x: torch.Tensor, rows: Rows, caches: SessionCaches) -> torch.Tensor:
        """Store the chunk's keys and values; returns the modulated tokens they come from."""
        # The modulation is the same for all tokens, so it is the layer norm's own affine part.
        h = functional.layer_norm(x, x.shape[-1:], rows[1], rows[0], self.eps)
        h = h.to(self.self_attn.q.weight.dtype)
        self.self_attn.store(h, caches, self.layer)
        return h

    def forward(self, x: torch.Tensor, rows: Rows, caches: SessionCaches) -> None:
        """Update the residual stream x, float32 [s, dim], in place."""
        h = self.store(x, rows, caches)
        dtype, seen = h.dtype, caches.slots.visible
        query = self.self_attn.turned_query(h, caches.turn)
        keys, values = caches.frames.keys[self.layer], caches.frames.values[self.layer]
        h = attend(query, keys[:seen], values[:seen])
        x.addcmul_(self.self_attn.o(h), rows[2])

        scale, shift = caches.camera[self.layer]
        x.addcmul_(x, scale).add_(shift)

        h = self.cross_attn.prompt_query(self.norm3(x).to(dtype))
        x += self.cross_attn.o(attend(h, *caches.prompt[self.layer]))

        h = functional.layer_norm(x, x.shape[-1:], rows[4], rows[3], self.eps)
        inner, _, outer = self.ffn
        h = torch.ops.aten.gelu_(inner(h.to(dtype)), approximate="tanh")
        x.addcmul_(outer(h), rows[5])


class Head(nn.Module):
    """From tokens to the patches of the flow."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        frames, rows, columns = config.patch_size
        self.eps = config.eps
        self.head = nn.Linear(config.dim, frames * rows * columns * config.out_dim)
        self.modulation = nn.Parameter(torch.empty(1, 2, config.dim))

    def forward(self, x: torch.Tensor, rows: Rows) -> torch.Tensor:
        patches: torch.Tensor = self.head(
            functional.layer_norm(x, x.shape[-1:], rows[1], rows[0], self.eps)
        )
        return patches
