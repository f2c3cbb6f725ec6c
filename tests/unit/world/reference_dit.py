"""The transformer written down plainly: no caches but a list, everything recomputed, complex128.

Slow on purpose; the optimised network must give the same numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from lingbot_triton.world.config import TransformerConfig

Weights = dict[str, Tensor]


def linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def layer_norm(x: Tensor, eps: float) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    return (x - mean) / (variance + eps).sqrt()


def softmax_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("shd,thd->hst", q, k) / q.shape[-1] ** 0.5
    return torch.einsum("hst,thd->shd", scores.softmax(-1), v).flatten(1)


def rope(x: Tensor, first_frame: int, grid: tuple[int, int, int]) -> Tensor:
    """Token by token and pair by pair, in complex128."""
    head_dim = x.shape[-1]
    pairs = head_dim // 2
    spatial = pairs // 3
    temporal = pairs - 2 * spatial
    frames, height, width = grid
    turned = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous()).clone()
    for token in range(frames * height * width):
        frame, row, column = (
            first_frame + token // (height * width),
            token // width % height,
            token % width,
        )
        for axis, position, count, start in (
            (0, frame, temporal, 0),
            (1, row, spatial, temporal),
            (2, column, spatial, temporal + spatial),
        ):
            del axis
            for pair in range(count):
                angle = torch.tensor(position / 10000 ** (pair / count), dtype=torch.float64)
                turned[token, :, start + pair] *= torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)


def patches(x: Tensor) -> Tensor:
    c, f, h, w = x.shape
    cells = x.reshape(c, f, h // 2, 2, w // 2, 2)
    return torch.einsum("cfhqwr->fhwcqr", cells).reshape(f * h * w // 4, c * 4)


class ReferenceSession:
    """One session: the keys and values of earlier frames, oldest first, and the prompt."""

    def __init__(
        self, weights: Weights, config: TransformerConfig, context: Tensor, window: int, sink: int
    ) -> None:
        self.weights, self.config = weights, config
        self.window, self.sink = window, sink
        padded = torch.zeros(config.text_len, config.text_dim)
        padded[: len(context)] = context
        hidden = functional.gelu(linear(weights, "text_embedding.0", padded), approximate="tanh")
        self.text = linear(weights, "text_embedding.2", hidden)
        self.kept: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(config.num_layers)]
        """Per layer and earlier latent frame its rotated keys and its values."""
        self.pending = self.kept
        self.first_frame = 0

    def forward(self, sample: Tensor, timestep: int, control: Tensor) -> Tensor:
        """The flow at `sample` [in_dim, f, h, w]; `commit` afterwards keeps its keys."""
        weights, config = self.weights, self.config
        _, f, h, w = sample.shape
        grid = (f, h // 2, w // 2)
        half = config.freq_dim // 2
        angles = timestep * 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        wave = torch.cat((angles.cos(), angles.sin())).float()
        e = linear(weights, "time_embedding.0", wave)
        e = linear(weights, "time_embedding.2", functional.silu(e))
        e6 = linear(weights, "time_projection.1", functional.silu(e)).view(6, -1)

        c = linear(weights, "patch_embedding_wancamctrl", patches(control))
        c = c + self._two(c, "c2ws_hidden_states_layer1", "c2ws_hidden_states_layer2")
        x = patches(sample) @ weights["patch_embedding.weight"].flatten(1).T
        x = x + weights["patch_embedding.bias"]
        self.pending = []
        for layer in range(config.num_layers):
            x = self._block(layer, x, e6, c, grid)
        shift, scale = weights["head.modulation"][0] + e
        x = linear(weights, "head.head", layer_norm(x, config.eps) * (1 + scale) + shift)
        cells = x.view(*grid, 2, 2, config.out_dim)
        return torch.einsum("fhwqrc->cfhqwr", cells).reshape(config.out_dim, f, h, w)

    def commit(self, frames: int) -> None:
        """Keep what the last pass computed; evict the oldest frames that are no sink."""
        self.kept = self.pending
        self.first_frame += frames
        for layer in self.kept:
            surplus = max(0, len(layer) - self.window)
            del layer[self.sink : self.sink + surplus]

    def _two(self, x: Tensor, first: str, second: str) -> Tensor:
        return linear(self.weights, second, functional.silu(linear(self.weights, first, x)))

    def _block(
        self, layer: int, x: Tensor, e6: Tensor, c: Tensor, grid: tuple[int, int, int]
    ) -> Tensor:
        weights, eps = self.weights, self.config.eps
        name = f"blocks.{layer}"
        heads = (self.config.num_heads, -1)
        e = weights[f"{name}.modulation"][0] + e6

        h = layer_norm(x, eps) * (1 + e[1]) + e[0]
        q, k, v = (linear(weights, f"{name}.self_attn.{part}", h) for part in "qkv")
        q = rms(q, weights[f"{name}.self_attn.norm_q.weight"], eps).unflatten(-1, heads)
        k = rms(k, weights[f"{name}.self_attn.norm_k.weight"], eps).unflatten(-1, heads)
        q, k = rope(q, self.first_frame, grid), rope(k, self.first_frame, grid)
        v = v.unflatten(-1, heads)
        room = self.window - grid[0]
        earlier = list(self.kept[layer])
        del earlier[self.sink : self.sink + max(0, len(earlier) - room)]
        mine = list(zip(k.chunk(grid[0]), v.chunk(grid[0]), strict=True))
        self.pending.append(list(self.kept[layer]) + mine)
        seen = earlier + mine
        h = softmax_attention(q, torch.cat([s[0] for s in seen]), torch.cat([s[1] for s in seen]))
        x = x + e[2] * linear(weights, f"{name}.self_attn.o", h)

        h = c + self._two(c, f"{name}.cam_injector_layer1", f"{name}.cam_injector_layer2")
        scale = linear(weights, f"{name}.cam_scale_layer", h)
        x = (1 + scale) * x + linear(weights, f"{name}.cam_shift_layer", h)

        h = layer_norm(x, eps) * weights[f"{name}.norm3.weight"] + weights[f"{name}.norm3.bias"]
        q = linear(weights, f"{name}.cross_attn.q", h)
        q = rms(q, weights[f"{name}.cross_attn.norm_q.weight"], eps).unflatten(-1, heads)
        k = linear(weights, f"{name}.cross_attn.k", self.text)
        k = rms(k, weights[f"{name}.cross_attn.norm_k.weight"], eps).unflatten(-1, heads)
        v = linear(weights, f"{name}.cross_attn.v", self.text).unflatten(-1, heads)
        x = x + linear(weights, f"{name}.cross_attn.o", softmax_attention(q, k, v))

        h = layer_norm(x, eps) * (1 + e[4]) + e[3]
        h = functional.gelu(linear(weights, f"{name}.ffn.0", h), approximate="tanh")
        return x + e[5] * linear(weights, f"{name}.ffn.2", h)
