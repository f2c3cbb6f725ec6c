"""The one attention function of the network."""

from __future__ import annotations

import torch
from torch.nn import functional


def attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Softmax attention without a mask.

    query [s, heads, d], keys and values [t, heads, d], all of one dtype; returns [s, heads * d].
    The transposes are views: the kernels take any strides, and write [s, heads, d] again.
    """
    out = functional.scaled_dot_product_attention(
        query.transpose(0, 1).unsqueeze(0),
        keys.transpose(0, 1).unsqueeze(0),
        values.transpose(0, 1).unsqueeze(0),
    )
    return out.squeeze(0).transpose(0, 1).flatten(1)
