"""The network's attention: one function, and what may compute it.

`sdpa` is torch's own and the reference. `sage` is the package sageattention, 1.x or 2.x, which
quantises to 8 bits: faster on the GPUs it knows, and not the same numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Any

import torch
from torch.nn import functional

from lingbot_triton.world.errors import AttentionError

log = logging.getLogger(__name__)

CHOICES = ("auto", "sdpa", "sage")
_SAGE = "sageattention"
_SAGE_HEAD_DIMS = (64, 96, 128)
_SAGE_CAPABILITY = (8, 0)
_PROBE_TOLERANCE = 0.1
"""Mean error of a sound 8-bit attention is about 0.01 of the mean output; a broken one's is 1."""

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Softmax attention without a mask.

query [s, heads, d], keys and values [t, heads, d], all of one dtype; returns [s, heads * d]. Keys
and values are a session's cache: they are never changed.
"""


@dataclass(frozen=True)
class Backend:
    """What computes attention, chosen once when the network is loaded."""

    name: str
    attend: Attend


def attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """`Attend` by torch. The transposes are views: the kernels take any strides, and write
    [s, heads, d] again.
    """
    out = functional.scaled_dot_product_attention(
        query.transpose(0, 1).unsqueeze(0),
        keys.transpose(0, 1).unsqueeze(0),
        values.transpose(0, 1).unsqueeze(0),
    )
    return out.squeeze(0).transpose(0, 1).flatten(1)


SDPA = Backend("sdpa", attend)


def choose(wanted: str, device: torch.device, dtype: torch.dtype, head_dim: int) -> Backend:
    """The backend for `wanted`: `sdpa`, `sage`, or `auto`, which is sage where that can run.

    Raises AttentionError, with the reason, for `sage` where it cannot run.
    """
    if wanted not in CHOICES:
        raise AttentionError(f"attention is {wanted!r}; it must be one of {', '.join(CHOICES)}")
    backend = SDPA
    if wanted != "sdpa":
        try:
            backend = _sage(device, dtype, head_dim)
        except AttentionError as error:
            if wanted == "sage":
                raise
            log.info("attention auto: %s", error)
    log.info("attention is computed by %s", backend.name)
    return backend


def _sage(device: torch.device, dtype: torch.dtype, head_dim: int) -> Backend:
    """SageAttention, after a trial on this device."""
    reason = _misfit(device, dtype, head_dim)
    if reason is not None:
        raise AttentionError(f"sage cannot run here: {reason}")
    try:
        sageattn = import_module(_SAGE).sageattn
        version = metadata.version(_SAGE)
    except ModuleNotFoundError:
        raise AttentionError(f"sage cannot run here: {_SAGE} is not installed") from None
    except Exception as error:  # its extensions may be built for another torch
        raise AttentionError(f"sage cannot run here: importing it failed: {error}") from None
    name = f"{_SAGE} {version}"
    try:
        changed, error_share = _probe(sageattn, device, dtype, head_dim)
    except Exception as error:
        raise AttentionError(f"sage cannot run here: {name} failed a trial: {error}") from None
    if not error_share < _PROBE_TOLERANCE:
        raise AttentionError(
            f"sage cannot run here: in a trial {name} was off by {error_share:.2g} of the output, "
            f"at most {_PROBE_TOLERANCE} is allowed"
        )
    # 1.x subtracts the mean from the keys it is given, and those are the session's cache.
    return Backend(name, _sage_attend(sageattn, copies=changed or version.startswith("1.")))


def _misfit(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """Why the package could not run, None where it could."""
    if device.type != "cuda":
        return f"it needs a CUDA device, not {device}"
    capability = torch.cuda.get_device_capability(device)
    if capability < _SAGE_CAPABILITY:
        needed, actual = (".".join(map(str, pair)) for pair in (_SAGE_CAPABILITY, capability))
        return f"it needs compute capability {needed}, {device} has {actual}"
    if dtype not in (torch.float16, torch.bfloat16):
        return f"it needs dtype float16 or bfloat16, not {str(dtype).removeprefix('torch.')}"
    if head_dim not in _SAGE_HEAD_DIMS:
        return f"it needs a head width of {_SAGE_HEAD_DIMS}, not {head_dim}"
    return None


def _sage_attend(sageattn: Callable[..., Any], *, copies: bool) -> Attend:
    def attend_by_sage(
        query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        if copies:
            keys, values = keys.clone(), values.clone()
        out: torch.Tensor = sageattn(
            query.unsqueeze(0),
            keys.unsqueeze(0),
            values.unsqueeze(0),
            tensor_layout="NHD",
            is_causal=False,
        )
        return out.squeeze(0).flatten(1)

    return attend_by_sage


@torch.inference_mode()
def _probe(
    sageattn: Callable[..., Any], device: torch.device, dtype: torch.dtype, head_dim: int
) -> tuple[bool, float]:
    """Whether a call changes its keys or values, and its mean error relative to `attend`."""
    generator = torch.Generator().manual_seed(0)
    query, keys, values = (
        torch.randn(tokens, 2, head_dim, generator=generator).to(device, dtype)
        for tokens in (256, 640, 640)
    )
    keys, values = keys + 1, values + 1  # where the mean is 0 there is nothing to subtract
    given_keys, given_values = keys.clone(), values.clone()
    expected = attend(query, keys, values).float()
    out = _sage_attend(sageattn, copies=False)(query, given_keys, given_values).float()
    changed = not (torch.equal(given_keys, keys) and torch.equal(given_values, values))
    return changed, float((out - expected).abs().mean() / expected.abs().mean())
