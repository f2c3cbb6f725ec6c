"""LingBot-World-Fast's causal transformer.

The module holds weights, `SessionCaches` holds a session. What cannot change between the five
passes of a chunk is computed once: per session the prompt's keys and values, per timestep the
modulation, per chunk the rope frequencies and, in every block, the camera's scale and shift.

Weights are in the compute dtype; the residual stream, the norms before the projections, timestep,
modulation and head are float32 whatever that is. Submodule names are the checkpoint's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from lingbot_triton.world.config import TransformerConfig
from lingbot_triton.world.kernels import Kernels
from lingbot_triton.world.kv_cache import KVCache
from lingbot_triton.world.layers import Block, Head, ModulationParameters, SessionCaches
from lingbot_triton.world.rope import rope_frequencies

_FLOAT32_WEIGHTS = ("modulation", "time_embedding", "time_projection", "norm3", "head.")


def dtype_of(name: str, dtype: torch.dtype) -> torch.dtype:
    """The dtype the weight `name` is kept in where the network computes in `dtype`."""
    return torch.float32 if any(part in name for part in _FLOAT32_WEIGHTS) else dtype


@dataclass(frozen=True)
class Modulation:
    """Everything that one timestep contributes."""

    blocks: list[ModulationParameters]
    head: ModulationParameters


class WorldTransformer(nn.Module):
    """The whole network; build it on the meta device and fill it with `checkpoint.load`."""

    def __init__(self, config: TransformerConfig, kernels: Kernels | None = None) -> None:
        super().__init__()
        dim = config.dim
        self.config = config
        self.kernels = kernels = kernels or Kernels()
        self.patch_embedding = nn.Conv3d(config.in_dim, dim, config.patch_size, config.patch_size)
        self.patch_embedding_wancamctrl = nn.Linear(config.control_width, dim)
        self.c2ws_hidden_states_layer1 = nn.Linear(dim, dim)
        self.c2ws_hidden_states_layer2 = nn.Linear(dim, dim)
        self.text_embedding = nn.Sequential(
            nn.Linear(config.text_dim, dim), nn.GELU("tanh"), nn.Linear(dim, dim)
        )
        self.time_embedding = nn.Sequential(
            nn.Linear(config.freq_dim, dim), nn.SiLU(), nn.Linear(dim, dim)
        )
        self.time_projection = nn.Sequential(nn.SiLU(), nn.Linear(dim, dim * 6))
        self.layers = tuple(Block(config, layer, kernels) for layer in range(config.num_layers))
        self.blocks = nn.ModuleList(self.layers)
        self.head = Head(config)

    @property
    def dtype(self) -> torch.dtype:
        return self.patch_embedding.weight.dtype

    def modulation(self, timestep: int) -> Modulation:
        """What every block and the head get from `timestep` (0..999); float32."""
        half = self.config.freq_dim // 2
        device = self.head.modulation.device
        powers = torch.arange(half, dtype=torch.float64, device=device) / half
        angles = timestep * 10000.0**-powers
        wave = torch.cat((angles.cos(), angles.sin())).float()
        embedded = self.time_embedding(wave)
        projected = self.time_projection(embedded).view(6, -1)

        def rows(added: torch.Tensor, scales: tuple[int, ...]) -> ModulationParameters:
            for index in scales:
                added[index] += 1
            return added.unbind()

        blocks = [rows(block.modulation[0] + projected, (1, 4)) for block in self.layers]
        return Modulation(blocks, rows(self.head.modulation[0] + embedded, (1,)))

    def open(
        self, context: torch.Tensor, frames: KVCache, grid: tuple[int, int, int]
    ) -> SessionCaches:
        """A session's caches from its prompt [tokens <= text_len, text_dim]."""
        caches = SessionCaches(frames, self.prompt_keys(context), grid)
        self._compute_rope(caches)
        return caches

    def prompt_keys(self, context: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Per block the keys and values of a prompt [tokens <= text_len, text_dim]."""
        padded = context.new_zeros(self.config.text_len, context.shape[1], dtype=self.dtype)
        padded[: len(context)] = context
        text = self.text_embedding(padded)
        return [block.cross_attn.prompt_keys(text) for block in self.layers]

    def begin_chunk(self, caches: SessionCaches) -> None:
        """Give the next chunk its slots; its positions are there already."""
        caches.slots = caches.frames.advance(caches.grid[0])

    def _compute_rope(self, caches: SessionCaches) -> None:
        """Compute the next chunk's positions ahead of its control."""
        first, device = caches.frames.seen_frames, self.head.modulation.device
        caches.freqs_cis = rope_frequencies(self.config.head_dim, first, *caches.grid, device)

    def embed_control(self, caches: SessionCaches, control: torch.Tensor) -> None:
        """Take the chunk's control [channels, frames, h, w], for all of its passes.

        At full size its scales and shifts take 3.8 GB, which only chunks in work hold.
        """
        tokens = self.patch_embedding_wancamctrl(patchify(control).to(self.dtype))
        hidden = functional.silu(self.c2ws_hidden_states_layer1(tokens))
        tokens += self.c2ws_hidden_states_layer2(hidden)
        caches.camera = [block.camera_scale_shift(tokens) for block in self.layers]

    def _embed(self, sample: torch.Tensor) -> torch.Tensor:
        weight = self.patch_embedding.weight.flatten(1)
        tokens = patchify(sample).to(weight.dtype)
        return functional.linear(tokens, weight, self.patch_embedding.bias).float()

    def forward(
        self, sample: torch.Tensor, modulation: Modulation, caches: SessionCaches
    ) -> torch.Tensor:
        """The flow, float32 [out_dim, f, h, w], at a noisy sample with its condition.

        sample is float32 [in_dim, f, h, w]. The chunk's keys and values are overwritten.
        """
        x = self._embed(sample)
        for block, parameters in zip(self.layers, modulation.blocks, strict=True):
            block(x, parameters, caches)
        return unpatchify(self.head(x, modulation.head), caches.grid)

    def commit(self, sample: torch.Tensor, modulation: Modulation, caches: SessionCaches) -> None:
        """Leave the clean sample's keys and values in the caches, ready for the next chunk.

        The head is not run, nor what follows the last block's keys and values.
        """
        x = self._embed(sample)
        *blocks, last = self.layers
        for block, parameters in zip(blocks, modulation.blocks, strict=False):
            block(x, parameters, caches)
        last.store(x, modulation.blocks[-1], caches)
        caches.camera = []
        self._compute_rope(caches)


def patchify(x: torch.Tensor) -> torch.Tensor:
    """[c, f, h, w] to tokens [f * h/2 * w/2, c * 4], features in order (c, row, column)."""
    channels, frames, height, width = x.shape
    cells = x.view(channels, frames, height // 2, 2, width // 2, 2)
    return cells.permute(1, 2, 4, 0, 3, 5).reshape(-1, channels * 4)


def unpatchify(patches: torch.Tensor, grid: tuple[int, int, int]) -> torch.Tensor:
    """Tokens [f * h * w, 4 * c], features in order (row, column, c), to [c, f, 2h, 2w]."""
    frames, height, width = grid
    cells = patches.view(frames, height, width, 2, 2, -1)
    return cells.permute(5, 0, 1, 3, 2, 4).reshape(-1, frames, height * 2, width * 2)
