"""The transformer's shape, read from its config and checked against its weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from lingbot_triton.world.control import CONTROL_CHANNELS
from lingbot_triton.world.errors import CheckpointError

_CONTROL_CELL = 64
"""Pixels of one latent cell, all of which are channels of its control."""


@dataclass(frozen=True)
class TransformerConfig:
    """Widths and counts of LingBot-World-Fast's transformer; the defaults are what configs omit."""

    dim: int
    ffn_dim: int
    num_heads: int
    num_layers: int
    control_type: str
    in_dim: int = 36
    out_dim: int = 16
    freq_dim: int = 256
    text_dim: int = 4096
    text_len: int = 512
    patch_size: tuple[int, int, int] = (1, 2, 2)
    eps: float = 1e-6

    @property
    def head_dim(self) -> int:
        return self.dim // self.num_heads

    @property
    def control_width(self) -> int:
        """Control values of one token."""
        return CONTROL_CHANNELS[self.control_type] * _CONTROL_CELL * prod(self.patch_size)

    @classmethod
    def read(
        cls, config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], source: str
    ) -> TransformerConfig:
        """From a parsed config.json, in its native or its diffusers naming, and all weight shapes.

        Raises CheckpointError where the two disagree, where a width is known to neither, and for
        variants that the network here does not have. `source` names the checkpoint in messages.
        """
        declared = _native_names(config)
        inferred = _from_shapes(shapes, declared, source)
        for name, value in inferred.items():
            if name in declared and declared[name] != value:
                raise CheckpointError(
                    f"{source}: config.json says {name} is {declared[name]!r}, "
                    f"the weights say {value!r}"
                )
        known = {**declared, **inferred}
        if "num_heads" not in known:
            raise CheckpointError(f"{source}: config.json names no num_heads")
        result = cls(**{name: known[name] for name in cls.__dataclass_fields__ if name in known})
        _check(result, config, source)
        return result


def _native_names(config: Mapping[str, Any]) -> dict[str, Any]:
    renamed = {
        "num_attention_heads": "num_heads",
        "in_channels": "in_dim",
        "out_channels": "out_dim",
    }
    declared = {renamed.get(name, name): value for name, value in config.items()}
    if "dim" not in declared and "attention_head_dim" in declared:
        declared["dim"] = declared["attention_head_dim"] * declared["num_heads"]
    if "patch_size" in declared:
        declared["patch_size"] = tuple(declared["patch_size"])
    return {name: value for name, value in declared.items() if value is not None}


def _from_shapes(
    shapes: Mapping[str, tuple[int, ...]], declared: Mapping[str, Any], source: str
) -> dict[str, Any]:
    def shape(name: str) -> tuple[int, ...]:
        if name not in shapes:
            raise CheckpointError(f"{source}: the weights hold no {name}")
        return shapes[name]

    dim, in_dim, *patch = shape("patch_embedding.weight")
    cell = _CONTROL_CELL * prod(patch)
    channels, rest = divmod(shape("patch_embedding_wancamctrl.weight")[1], cell)
    kinds = {count: kind for kind, count in CONTROL_CHANNELS.items()}
    if rest or channels not in kinds:
        raise CheckpointError(
            f"{source}: patch_embedding_wancamctrl takes {channels * cell + rest} values a token; "
            + ", ".join(f"{kind} needs {count * cell}" for count, kind in kinds.items())
        )
    layers = {int(match[1]) for name in shapes if (match := re.match(r"blocks\.(\d+)\.", name))}
    return {
        "dim": dim,
        "in_dim": in_dim,
        "patch_size": tuple(patch),
        "ffn_dim": shape("blocks.0.ffn.0.weight")[0],
        "num_layers": len(layers),
        "freq_dim": shape("time_embedding.0.weight")[1],
        "text_dim": shape("text_embedding.0.weight")[1],
        "out_dim": shape("head.head.weight")[0] // prod(patch),
        "control_type": kinds[channels],
    }


def _check(result: TransformerConfig, config: Mapping[str, Any], source: str) -> None:
    if result.dim % result.num_heads or result.head_dim % 2:
        raise CheckpointError(
            f"{source}: {result.num_heads} heads do not share a width of {result.dim} evenly"
        )
    if result.patch_size != (1, 2, 2):
        raise CheckpointError(
            f"{source}: patch_size is {result.patch_size}; only (1, 2, 2) is known"
        )
    for name in ("qk_norm", "cross_attn_norm"):
        if config.get(name) is False:
            raise CheckpointError(
                f"{source}: {name} is false; only networks that have it are known"
            )
