"""What lies between the network's matrix products, as plain functions.

On GPUs each of their operations reads and writes the whole residual stream; compiled, each function
does so once. Compiled or not they compute the same, but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from lingbot_triton.world.attention import SDPA, Backend
from lingbot_triton.world.rope import apply_rope


def norm_factor(x: torch.Tensor, eps: float) -> torch.Tensor:
    """What RMS norm multiplies tokens x [s, dim] by before its weight, float32 [s, 1]."""
    norm: torch.Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    return norm.square_().mul_(1 / x.shape[-1]).add_(eps).rsqrt_()


def modulate(
    x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, eps: float, dtype: torch.dtype
) -> torch.Tensor:
    """Layer norm of x, float32 [s, dim], with the modulation's rows [dim] as its affine part."""
    return functional.layer_norm(x, x.shape[-1:], scale, shift, eps).to(dtype)


def norm_rope(
    x: torch.Tensor, weight: torch.Tensor, freqs_cis: torch.Tensor, heads: int, eps: float
) -> torch.Tensor:
    """RMS norm and rotation of x [s, dim], which is overwritten; returns [s, heads, d].

    `freqs_cis` is what `rope_frequencies` gives, [s, 1, d/2].
    """
    # The norm's factor is one number a token: it rides on the rotation, which is complex.
    freqs_cis = freqs_cis * norm_factor(x, eps).unsqueeze(-1)
    return apply_rope(x.mul_(weight).view(len(x), heads, -1), freqs_cis)


def norm_rope_real(
    x: torch.Tensor, weight: torch.Tensor, freqs_cis: torch.Tensor, heads: int, eps: float
) -> torch.Tensor:
    """`norm_rope` for compilers, which know no complex numbers; freqs_cis is [s, 1, d/2, 2]."""
    scaled = (x * norm_factor(x, eps) * weight).float()
    real, imaginary = scaled.view(len(x), heads, -1, 2).unbind(-1)
    cos, sin = freqs_cis.unbind(-1)
    rotated = torch.stack((real * cos - imaginary * sin, real * sin + imaginary * cos), -1)
    return rotated.flatten(-2).to(x.dtype)


def query_norm(x: torch.Tensor, eps: float) -> torch.Tensor:
    """RMS norm, without its weight, of x [s, dim], which is overwritten."""
    return x.mul_(norm_factor(x, eps))


def gate_camera_norm(
    x: torch.Tensor,
    out: torch.Tensor,
    gate: torch.Tensor,
    camera: tuple[torch.Tensor, torch.Tensor],
    norm: tuple[torch.Tensor, torch.Tensor],
    eps: float,
) -> torch.Tensor:
    """Add gated attention `out` and the camera's scale and shift to x, in place; x normalised."""
    scale, shift = camera
    x.addcmul_(out, gate)
    x.addcmul_(x, scale).add_(shift)
    return functional.layer_norm(x, x.shape[-1:], *norm, eps).to(out.dtype)


def residual_modulate(
    x: torch.Tensor, out: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, eps: float
) -> torch.Tensor:
    """Add the prompt's attention `out` to x, in place; returns x modulated."""
    x += out
    return functional.layer_norm(x, x.shape[-1:], scale, shift, eps).to(out.dtype)


@dataclass(frozen=True)
class Kernels:
    """The functions a network computes with."""

    attention: Backend = SDPA
    modulate: Callable[..., torch.Tensor] = modulate
    norm_rope: Callable[..., torch.Tensor] = norm_rope
    query_norm: Callable[..., torch.Tensor] = query_norm
    gate_camera_norm: Callable[..., torch.Tensor] = gate_camera_norm
    residual_modulate: Callable[..., torch.Tensor] = residual_modulate
    compiled: bool = False

    @classmethod
    def compile(cls, attention: Backend = SDPA, backend: Any = "inductor") -> Kernels:
        """Compiled ones; nothing is compiled before the first call. `backend` is torch.compile's.

        The first number of tokens that a function meets is compiled for by itself, the second one
        for good: after two, no other recompiles.
        """
        from torch._inductor import config  # takes a second to import

        # Or else torch starts processes to compile in, which outlive this one when it is killed.
        config.compile_threads = 1

        def compiled(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
            return torch.compile(function, backend=backend, fullgraph=True)

        rope_compiled = compiled(norm_rope_real)

        def norm_rope_complex(
            x: torch.Tensor, weight: torch.Tensor, freqs_cis: torch.Tensor, heads: int, eps: float
        ) -> torch.Tensor:
            return rope_compiled(x, weight, torch.view_as_real(freqs_cis), heads, eps)

        return cls(
            attention,
            compiled(modulate),
            norm_rope_complex,
            compiled(query_norm),
            compiled(gate_camera_norm),
            compiled(residual_modulate),
            compiled=True,
        )
