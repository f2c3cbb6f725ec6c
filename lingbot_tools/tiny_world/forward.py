"""The transformer's arithmetic for training: batched, differentiable, a whole film in one pass.

`world.dit` computes one chunk after another in place, for speed. Here the same weights see the
clean chunks and noisy copies of them side by side, and every segment attends to what it would find
in a session's cache; the numbers are the same but for rounding.

Tokens are [batch, segments, tokens of a chunk, dim]. A segment is one chunk at one noise level.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from lingbot_triton.world.dit import WorldTransformer
from lingbot_triton.world.layers import Attention, Block, RMSNorm
from lingbot_triton.world.rope import rope_frequencies

Pair = tuple[torch.Tensor, torch.Tensor]
Prompt = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""One block's keys and values [batch, heads, length + 1, d] of the batch's prompts, and what is
added to attention's logits, [batch, 1, 1, length + 1]."""
Views = list[list[slice]]
"""Per segment the spans of tokens whose keys it attends to."""


def segment_tokens(x: torch.Tensor, frames: int) -> torch.Tensor:
    """[batch, c, n * frames, h, w] to tokens [batch, n, frames * h/2 * w/2, c * 4]."""
    batch, channels, total, height, width = x.shape
    cells = x.view(batch, channels, total // frames, frames, height // 2, 2, width // 2, 2)
    tokens = cells.permute(0, 2, 3, 4, 6, 1, 5, 7)
    return tokens.reshape(batch, total // frames, -1, channels * 4)


def unsegment_tokens(patches: torch.Tensor, grid: tuple[int, int, int]) -> torch.Tensor:
    """Patches [batch, n, tokens, 4 * c] to [batch, c, n * frames, 2 * rows, 2 * columns]."""
    batch, count = patches.shape[:2]
    frames, rows, columns = grid
    cells = patches.view(batch, count, frames, rows, columns, 2, 2, -1)
    video = cells.permute(0, 7, 1, 2, 3, 5, 4, 6)
    return video.reshape(batch, -1, count * frames, rows * 2, columns * 2)


def read_prompts(network: WorldTransformer, contexts: list[torch.Tensor]) -> list[Prompt]:
    """Per block, of embeddings [tokens, text_dim], one for each of the batch.

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
    prompts = []
    for attention in (block.cross_attn for block in network.layers):
        keys = _normalised(attention.k(text), attention.norm_k, attention.eps)
        prompts.append((_heads(keys, attention), _heads(attention.v(text), attention), weights))
    return prompts


def read_controls(network: WorldTransformer, tokens: torch.Tensor) -> list[Pair]:
    """Per block the camera's scale and shift, for control tokens [batch, n, tokens, width]."""
    control = network.patch_embedding_wancamctrl(tokens)
    hidden = functional.silu(network.c2ws_hidden_states_layer1(control))
    control = control + network.c2ws_hidden_states_layer2(hidden)
    pairs = []
    for block in network.layers:
        hidden = block.cam_injector_layer2(functional.silu(block.cam_injector_layer1(control)))
        hidden = hidden + control
        pairs.append((block.cam_scale_layer(hidden), block.cam_shift_layer(hidden)))
    return pairs


def rope(
    network: WorldTransformer, first_frames: list[int], grid: tuple[int, int, int]
) -> torch.Tensor:
    """Cosines and sines [2, segments * tokens, d/2] of segments that begin at `first_frames`."""
    device = network.head.modulation.device
    parts = [
        rope_frequencies(network.config.head_dim, first, *grid, device) for first in first_frames
    ]
    return torch.view_as_real(torch.cat(parts)[:, 0]).permute(2, 0, 1)


def _waves(network: WorldTransformer, timesteps: torch.Tensor) -> torch.Tensor:
    half = network.config.freq_dim // 2
    powers = torch.arange(half, dtype=torch.float64) / half
    angles = timesteps.double().unsqueeze(-1) * 10000.0**-powers
    return torch.cat((angles.cos(), angles.sin()), -1).float()


def forward(
    network: WorldTransformer,
    tokens: torch.Tensor,
    timesteps: torch.Tensor,
    camera: list[Pair],
    prompts: list[Prompt],
    freqs: torch.Tensor,
    views: Views,
    outputs: int,
) -> torch.Tensor:
    """Flow patches [batch, outputs, t, out_dim * 4] of the last `outputs` segments.

    tokens [batch, n, t, in_dim * 4] of samples with their conditions, timesteps [batch, n], camera
    from `read_controls` for the same n segments, `freqs` from `rope`. Each segment sees its
    `views`.
    """
    weight = network.patch_embedding.weight.flatten(1)
    x = functional.linear(tokens, weight, network.patch_embedding.bias).float()
    with torch.autocast("cpu", enabled=False):  # few numbers, and float32 in the service too
        embedded = network.time_embedding(_waves(network, timesteps))
        projected = network.time_projection(embedded).view(*timesteps.shape, 6, -1)
    for index, block in enumerate(network.layers):
        modulation = (block.modulation[0] + projected).unsqueeze(-2).unbind(2)
        last = index == len(network.layers) - 1
        x = _block(
            block,
            x,
            modulation,
            camera[index],
            prompts[index],
            freqs,
            views,
            outputs if last else x.shape[1],
        )
    head = (network.head.modulation[0] + embedded[:, -outputs:].unsqueeze(2)).unsqueeze(-2)
    shift, scale = head.unbind(2)
    x = _norm(x, network.config.eps) * (1 + scale) + shift
    flow: torch.Tensor = network.head.head(x).float()
    return flow


def _block(
    block: Block,
    x: torch.Tensor,
    modulation: tuple[torch.Tensor, ...],
    camera: Pair,
    prompt: Prompt,
    freqs: torch.Tensor,
    views: Views,
    outputs: int,
) -> torch.Tensor:
    """The residual stream after the block, of the last `outputs` segments."""
    attention, eps = block.self_attn, block.eps
    h = _norm(x, eps) * (1 + modulation[1]) + modulation[0]
    key = _apply_rope(_heads(_normalised(attention.k(h), attention.norm_k, eps), attention), freqs)
    value = _heads(attention.v(h), attention)
    if outputs < x.shape[1]:
        # The other segments only leave keys and values.
        x, h = x[:, -outputs:], h[:, -outputs:]
        modulation = tuple(row[:, -outputs:] for row in modulation)
        camera = camera[0][:, -outputs:], camera[1][:, -outputs:]
        asking = outputs * x.shape[2]
        freqs = freqs[:, -asking:]
        views = views[-outputs:]
    query = _apply_rope(
        _heads(_normalised(attention.q(h), attention.norm_q, eps), attention), freqs
    )
    attended = _attend_views(query, key, value.to(key.dtype), views)
    x = x + attention.o(_merged(attended, x)) * modulation[2]
    x = x * (1 + camera[0]) + camera[1]

    cross = block.cross_attn
    h = functional.layer_norm(x, x.shape[-1:], block.norm3.weight, block.norm3.bias, eps)
    query = _heads(_normalised(cross.q(h), cross.norm_q, eps), cross)
    attended = _attend(query, *(part.to(query.dtype) for part in prompt))
    x = x + cross.o(_merged(attended, x))
    h = _norm(x, eps) * (1 + modulation[4]) + modulation[3]
    after: torch.Tensor = x + block.ffn(h) * modulation[5]
    return after


def _attend_views(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, views: Views
) -> torch.Tensor:
    """Segment by segment: a mask over everything at once would cost three times as much."""
    attended = []
    for part, spans in zip(query.chunk(len(views), dim=2), views, strict=True):
        seen = [torch.cat([x[:, :, span] for span in spans], dim=2) for x in (key, value)]
        attended.append(_attend(part, *seen))
    return torch.cat(attended, dim=2)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Plain: for so few tokens torch's fused attention takes two to five times as long."""
    logits = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    if weights is not None:
        logits = logits + weights
    attended: torch.Tensor = logits.softmax(-1).to(value.dtype) @ value
    return attended


def _norm(x: torch.Tensor, eps: float) -> torch.Tensor:
    return functional.layer_norm(x.float(), x.shape[-1:], eps=eps)


def _normalised(x: torch.Tensor, norm: RMSNorm, eps: float) -> torch.Tensor:
    wide = x.float()
    factor = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    return (wide * factor * norm.weight).to(x.dtype)


def _heads(x: torch.Tensor, attention: Attention) -> torch.Tensor:
    """[batch, ..., dim] to [batch, heads, tokens, d]."""
    tokens = x.reshape(len(x), -1, attention.heads, attention.head_dim)
    return tokens.transpose(1, 2)


def _merged(attended: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return attended.transpose(1, 2).reshape(like.shape)


def _apply_rope(x: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
    """Rotate the pairs of x [batch, heads, tokens, d]."""
    cos, sin = freqs
    real, imaginary = x.float().view(*x.shape[:-1], -1, 2).unbind(-1)
    pairs = torch.stack((real * cos - imaginary * sin, real * sin + imaginary * cos), -1)
    return pairs.flatten(-2).to(x.dtype)
