"""The transformer's layers and what they remember of a session.

Submodule names are the checkpoint's; tokens are [s, dim] without a batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional

from lingbot_triton.world.attention import attend
from lingbot_triton.world.config import TransformerConfig
from lingbot_triton.world.kernels import Kernels, norm_factor
from lingbot_triton.world.kv_cache import KVCache, Slots

ModulationParameters = tuple[torch.Tensor, ...]
"""Of one block, [dim] each: shift, 1 + scale, gate, then again for the ffn."""


@dataclass
class SessionCaches:
    """What the network remembers of one session."""

    frames: KVCache
    prompt: list[tuple[torch.Tensor, torch.Tensor]]
    """Per block the prompt's keys and values, [text_len, heads, head_dim]."""
    grid: tuple[int, int, int]
    """Tokens of a chunk along frame, row and column."""
    camera: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    """Per block scale and shift, [tokens, dim], from a chunk's control until it is committed."""
    slots: Slots = field(default_factory=lambda: Slots((), 0, 0))
    freqs_cis: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    """Rotation of the chunk's tokens."""

    def release(self) -> None:
        """Let go of all memory; the session is over."""
        self.frames.keys.clear()
        self.frames.values.clear()
        self.prompt.clear()
        self.camera.clear()


class RMSNorm(nn.Module):
    """Weight of a root-mean-square norm over the full width, before heads are split."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))


class Attention(nn.Module):
    """Projections and norms of self and cross attention; tokens are [s, dim]."""

    def __init__(self, config: TransformerConfig, kernels: Kernels) -> None:
        super().__init__()
        dim = config.dim
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.norm_q, self.norm_k = RMSNorm(dim), RMSNorm(dim)
        self.heads, self.head_dim, self.eps = config.num_heads, config.head_dim, config.eps
        self.kernels = kernels

    def rotated_query(self, x: torch.Tensor, freqs_cis: torch.Tensor) -> torch.Tensor:
        """Normalised, rotated queries [s, heads, head_dim] of tokens x."""
        return self.kernels.norm_rope(
            self.q(x), self.norm_q.weight, freqs_cis, self.heads, self.eps
        )

    def store(self, x: torch.Tensor, caches: SessionCaches, layer: int) -> None:
        """Write keys and values of the chunk's tokens into the session's slots."""
        keys, values = caches.frames.keys[layer], caches.frames.values[layer]
        key = self.kernels.norm_rope(
            self.k(x), self.norm_k.weight, caches.freqs_cis, self.heads, self.eps
        )
        for slot, token, length in caches.slots.segments:
            tokens, slots = slice(token, token + length), slice(slot, slot + length)
            keys[slots] = key[tokens]
            out = values[slots].flatten(1)
            torch.addmm(self.v.bias, x[tokens], self.v.weight.t(), out=out)

    def prompt_query(self, x: torch.Tensor) -> torch.Tensor:
        """Queries [s, heads, head_dim] for `prompt_keys`."""
        query = self.kernels.query_norm(self.q(x), self.eps)
        return query.view(-1, self.heads, self.head_dim)

    def prompt_keys(self, text: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [text_len, heads, head_dim] of the prompt.

        The weight of the queries' norm is in the keys: a product with it is a product with both.
        """
        key = self.k(text)
        weight = self.norm_k.weight.float() * self.norm_q.weight.float()
        key = (key * norm_factor(key, self.eps) * weight).to(text.dtype)
        shape = (-1, self.heads, self.head_dim)
        return key.view(shape), self.v(text).view(shape)


class Block(nn.Module):
    """One transformer block: self attention, camera, prompt, feed-forward."""

    def __init__(self, config: TransformerConfig, layer: int, kernels: Kernels) -> None:
        super().__init__()
        dim = config.dim
        self.layer = layer
        self.eps = config.eps
        self.kernels = kernels
        self.modulation = nn.Parameter(torch.empty(1, 6, dim))
        self.self_attn = Attention(config, kernels)
        self.norm3 = nn.LayerNorm(dim, config.eps)
        self.cross_attn = Attention(config, kernels)
        self.ffn = nn.Sequential(
            nn.Linear(dim, config.ffn_dim), nn.GELU("tanh"), nn.Linear(config.ffn_dim, dim)
        )
        self.cam_injector_layer1, self.cam_injector_layer2 = (
            nn.Linear(dim, dim),
            nn.Linear(dim, dim),
        )
        self.cam_scale_layer, self.cam_shift_layer = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def camera_scale_shift(self, control: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale and shift, [s, dim] each, for control tokens [s, dim]."""
        hidden = self.cam_injector_layer2(functional.silu(self.cam_injector_layer1(control)))
        hidden += control
        return self.cam_scale_layer(hidden), self.cam_shift_layer(hidden)

    def store(
        self, x: torch.Tensor, parameters: ModulationParameters, caches: SessionCaches
    ) -> torch.Tensor:
        """Store the chunk's keys and values; returns the modulated tokens they come from."""
        dtype = self.self_attn.q.weight.dtype
        h = self.kernels.modulate(x, parameters[1], parameters[0], self.eps, dtype)
        self.self_attn.store(h, caches, self.layer)
        return h

    def forward(
        self, x: torch.Tensor, parameters: ModulationParameters, caches: SessionCaches
    ) -> None:
        """Update the residual stream x, float32 [s, dim], in place."""
        kernels, seen = self.kernels, caches.slots.visible
        h = self.store(x, parameters, caches)
        query = self.self_attn.rotated_query(h, caches.freqs_cis)
        keys, values = caches.frames.keys[self.layer], caches.frames.values[self.layer]
        h = self.self_attn.o(kernels.attention.attend(query, keys[:seen], values[:seen]))

        norm = (self.norm3.weight, self.norm3.bias)
        h = kernels.gate_camera_norm(x, h, parameters[2], caches.camera[self.layer], norm, self.eps)
        # Against 512 keys there is nothing to gain from anything but torch's own attention.
        h = attend(self.cross_attn.prompt_query(h), *caches.prompt[self.layer])

        h = kernels.residual_modulate(
            x, self.cross_attn.o(h), parameters[4], parameters[3], self.eps
        )
        inner, _, outer = self.ffn
        h = torch.ops.aten.gelu_(inner(h), approximate="tanh")
        x.addcmul_(outer(h), parameters[5])


class Head(nn.Module):
    """From tokens to the patches of the flow."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        frames, rows, columns = config.patch_size
        self.eps = config.eps
        self.head = nn.Linear(config.dim, frames * rows * columns * config.out_dim)
        self.modulation = nn.Parameter(torch.empty(1, 2, config.dim))

    def forward(self, x: torch.Tensor, parameters: ModulationParameters) -> torch.Tensor:
        patches: torch.Tensor = self.head(
            functional.layer_norm(x, x.shape[-1:], parameters[1], parameters[0], self.eps)
        )
        return patches
