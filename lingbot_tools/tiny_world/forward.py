"""The transformer's arithmetic for training: batched, differentiable, a whole film in one pass.

`world.dit` computes one chunk after another in place, for speed. Here the same weights see the
clean chunks and noisy copies of them side by side, and every segment attends to what it would find
in a session's cache; the numbers are the same but for rounding.

Tokens are [batch, segments, tokens of a chunk, dim]. A segment is one chunk at one noise level.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import torch
from torch.nn import functional

from lingbot_tools.tiny_world.films import CHUNK
from lingbot_triton.world.dit import WorldTransformer, patchify, unpatchify
from lingbot_triton.world.layers import Attention, Block, RMSNorm
from lingbot_triton.world.rope import rope_frequencies

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Layout:
    """Chunks of a film as a session with or without a KV window would have them."""

    chunks: tuple[int, ...]
    """Their numbers in the film, in order."""
    first_frames: tuple[int, ...]
    """The position of each one's first latent frame in the session."""
    learnt: tuple[bool, ...]
    """Which of them are predicted; the others only are there to look back on."""
    window: int | None = None
    """Latent frames of the KV cache, the chunk's own among them; None keeps all."""
    sink: int = 0

    @classmethod
    def whole(cls, count: int, window: int | None = None, sink: int = 0) -> Layout:
        """A session from its start."""
        first = tuple(CHUNK * chunk for chunk in range(count))
        return cls(tuple(range(count)), first, (True,) * count, window, sink)

    @property
    def clean(self) -> int:
        """Clean segments, which come first: the last chunk is never looked back on."""
        return len(self.chunks) - 1

    def views(self, tokens: int) -> list[list[slice]]:
        """What each segment sees, at `tokens` a frame: the clean ones, then all noisy ones."""
        positions = [first + frame for first in self.first_frames for frame in range(CHUNK)]
        views = []
        for segment, asking in enumerate((*range(self.clean), *range(len(self.chunks)))):
            before = positions[: asking * CHUNK]
            sink = oldest = 0
            if self.window is not None:
                sink = bisect_left(before, self.sink)
                newest = self.first_frames[asking] + CHUNK
                oldest = bisect_left(before, newest - (self.window - self.sink), lo=sink)
            own = segment * CHUNK
            spans = ((0, sink), (oldest, len(before)), (own, own + CHUNK))
            views.append(
                [slice(first * tokens, end * tokens) for first, end in spans if first < end]
            )
        return views


@dataclass(frozen=True)
class Batch:
    """Films [b, ...] of the chunks that `layout` names."""

    layout: Layout
    clean: torch.Tensor
    """[b, 16, 3n, h, w]"""
    condition: torch.Tensor
    """[b, 20, 3n, h, w]"""
    control: torch.Tensor
    """[b, 384, 3n, h, w]"""
    contexts: list[torch.Tensor]


def predict_flow(
    network: WorldTransformer,
    batch: Batch,
    history: torch.Tensor,
    sample: torch.Tensor,
    timesteps: torch.Tensor,
) -> torch.Tensor:
    """The flow [b, 16, 3n, h, w] at noisy samples, each chunk after the clean `history` before it.

    history and sample are [b, 16, 3n, h, w] of the batch's chunks, timesteps [b, n].
    """
    layout, clean, eps = batch.layout, batch.layout.clean, network.config.eps
    grid = CHUNK, sample.shape[-2] // 2, sample.shape[-1] // 2
    first_frames = (*layout.first_frames[:clean], *layout.first_frames)
    head_dim, device = network.config.head_dim, sample.device
    freqs = torch.cat([rope_frequencies(head_dim, first, *grid, device) for first in first_frames])
    views = layout.views(grid[1] * grid[2])
    cameras, prompts = _cameras(network, batch), _prompts(network, batch.contexts)
    timesteps = torch.cat((timesteps.new_zeros(len(timesteps), clean), timesteps), dim=1)
    with torch.autocast("cpu", enabled=False):  # few numbers, and float32 in the service too
        embedded = network.time_embedding(_waves(network, timesteps))
        projected = network.time_projection(embedded).view(*timesteps.shape, 6, -1)

    conditioned = [
        _segments(torch.cat((video, batch.condition), dim=1)) for video in (history, sample)
    ]
    tokens = torch.cat((conditioned[0][:, :clean], conditioned[1]), dim=1)
    weight = network.patch_embedding.weight.flatten(1)
    x = functional.linear(tokens, weight, network.patch_embedding.bias).float()
    for index, block in enumerate(network.layers):
        modulation = (block.modulation[0] + projected).unsqueeze(-2).unbind(2)
        if index == len(network.layers) - 1:
            views = views[clean:]
        x = _block(block, x, modulation, cameras[index], prompts[index], freqs, views)
    shift, scale = (
        (network.head.modulation[0] + embedded[:, clean:].unsqueeze(2)).unsqueeze(-2).unbind(2)
    )
    patches = network.head.head(_norm(x, eps) * (1 + scale) + shift).float().flatten(1, 2)
    whole = len(layout.chunks) * CHUNK, *grid[1:]
    return torch.stack([unpatchify(film, whole) for film in patches])


def _segments(video: torch.Tensor) -> torch.Tensor:
    """[b, c, 3n, h, w] to tokens [b, n, 3 * h/2 * w/2, c * 4]."""
    tokens = torch.stack([patchify(film) for film in video])
    return tokens.view(len(video), video.shape[2] // CHUNK, -1, tokens.shape[-1])


def _prompts(network: WorldTransformer, contexts: list[torch.Tensor]) -> list[Tensors]:
    """Per block keys and values [b, heads, length + 1, d], and what is added to the logits.

    A session's prompt is padded to 512 tokens, all of which past its end are the same: here they
    are one, which counts as many times.
    """
    longest = max(len(context) for context in contexts)
    padded = contexts[0].new_zeros(len(contexts), longest + 1, network.config.text_dim)
    weights = padded.new_full((len(contexts), 1, 1, longest + 1), float("-inf"))
    for index, context in enumerate(contexts):
        padded[index, : len(context)] = context
        weights[index, ..., : len(context)] = 0
        padding = network.config.text_len - len(context)
        weights[index, ..., -1] = torch.tensor(float(padding)).log()
    text = network.text_embedding(padded)
    prompts: list[Tensors] = []
    for attention in (block.cross_attn for block in network.layers):
        keys = _heads(attention.k(text), attention, attention.norm_k)
        prompts.append((keys, _heads(attention.v(text), attention), weights))
    return prompts


def _cameras(network: WorldTransformer, batch: Batch) -> list[Tensors]:
    """Per block the camera's scale and shift, of the clean segments and of the noisy ones."""
    control = network.patch_embedding_wancamctrl(_segments(batch.control))
    hidden = functional.silu(network.c2ws_hidden_states_layer1(control))
    control = control + network.c2ws_hidden_states_layer2(hidden)
    pairs = [block.camera_scale_shift(control) for block in network.layers]
    clean = batch.layout.clean
    return [tuple(torch.cat((part[:, :clean], part), dim=1) for part in pair) for pair in pairs]


def _waves(network: WorldTransformer, timesteps: torch.Tensor) -> torch.Tensor:
    half = network.config.freq_dim // 2
    powers = torch.arange(half, dtype=torch.float64) / half
    angles = timesteps.double().unsqueeze(-1) * 10000.0**-powers
    return torch.cat((angles.cos(), angles.sin()), -1).float()


def _block(
    block: Block,
    x: torch.Tensor,
    modulation: Tensors,
    camera: Tensors,
    prompt: Tensors,
    freqs: torch.Tensor,
    views: list[list[slice]],
) -> torch.Tensor:
    """The residual stream after the block, of the last len(views) segments.

    Of the others there are only keys and values; a view is the spans of them that a segment sees.
    """
    attention, cross, eps = block.self_attn, block.cross_attn, block.eps
    h = _norm(x, eps) * (1 + modulation[1]) + modulation[0]
    key = _rotated(_heads(attention.k(h), attention, attention.norm_k), freqs)
    value = _heads(attention.v(h), attention).to(key.dtype)
    if len(views) < x.shape[1]:
        x, h, *parts = (part[:, -len(views) :] for part in (x, h, *modulation, *camera))
        modulation, camera = tuple(parts[:6]), tuple(parts[6:])
    query = _heads(attention.q(h), attention, attention.norm_q)
    query = _rotated(query, freqs[-query.shape[2] :])
    # Segment by segment: a mask over everything at once would cost three times as much.
    attended = [
        _attend(part, *(torch.cat([x[:, :, span] for span in view], dim=2) for x in (key, value)))
        for part, view in zip(query.chunk(len(views), dim=2), views, strict=True)
    ]
    h = torch.cat(attended, dim=2).transpose(1, 2).reshape(x.shape)
    x = x + attention.o(h) * modulation[2]
    x = x * (1 + camera[0]) + camera[1]

    h = functional.layer_norm(x, x.shape[-1:], block.norm3.weight, block.norm3.bias, eps)
    query = _heads(cross.q(h), cross, cross.norm_q)
    h = _attend(query, *(part.to(query.dtype) for part in prompt))
    x = x + cross.o(h.transpose(1, 2).reshape(x.shape))
    h = _norm(x, eps) * (1 + modulation[4]) + modulation[3]
    after: torch.Tensor = x + block.ffn(h) * modulation[5]
    return after


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, weights: torch.Tensor | None = None
) -> torch.Tensor:
    """Plain: for so few tokens torch's fused attention takes two to five times as long."""
    logits = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    if weights is not None:
        logits = logits + weights
    attended: torch.Tensor = logits.softmax(-1).to(value.dtype) @ value
    return attended


def _norm(x: torch.Tensor, eps: float) -> torch.Tensor:
    return functional.layer_norm(x.float(), x.shape[-1:], eps=eps)


def _heads(x: torch.Tensor, attention: Attention, norm: RMSNorm | None = None) -> torch.Tensor:
    """[b, ..., dim], normalised where there is a norm, to [b, heads, tokens, d]."""
    if norm is not None:
        normalised = functional.rms_norm(x.float(), x.shape[-1:], norm.weight, attention.eps)
        x = normalised.to(x.dtype)
    return x.reshape(len(x), -1, attention.heads, attention.head_dim).transpose(1, 2)


def _rotated(x: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
    """x [b, heads, tokens, d] as `rope.apply_rope` rotates it, in real numbers."""
    cos, sin = torch.view_as_real(freqs[:, 0]).unbind(-1)
    real, imaginary = x.float().view(*x.shape[:-1], -1, 2).unbind(-1)
    pairs = torch.stack((real * cos - imaginary * sin, real * sin + imaginary * cos), -1)
    return pairs.flatten(-2).to(x.dtype)
