"""How much the network computes, in floating-point operations, and how much a GPU could."""

from __future__ import annotations

from lingbot_triton.world.config import TransformerConfig

PEAKS = {
    "B200": 2250e12,
    "GH200": 989e12,
    "H200": 989e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "RTX 4090": 165e12,
}
"""Dense bfloat16 operations a second, from the vendor's data sheets; longest names first."""


def peak(gpu: str) -> float | None:
    """Operations a second of the GPU of this product name, None where it is not known."""
    return next((value for name, value in PEAKS.items() if name in gpu), None)


def control_flops(config: TransformerConfig, tokens: int) -> int:
    """Reading one chunk's control, for all of its passes."""
    embedding = 2 * tokens * config.control_width * config.dim
    return embedding + (2 + 4 * config.num_layers) * 2 * tokens * config.dim**2


def pass_flops(config: TransformerConfig, tokens: int, visible: int) -> int:
    """One pass of `tokens` that attend to `visible` ones."""
    head = 2 * tokens * config.dim * config.out_dim * 4
    return _embedding(config, tokens) + config.num_layers * _block(config, tokens, visible) + head


def commit_flops(config: TransformerConfig, tokens: int, visible: int) -> int:
    """The pass that leaves keys and values: its last block ends with those."""
    last = 2 * 2 * tokens * config.dim**2
    blocks = (config.num_layers - 1) * _block(config, tokens, visible)
    return _embedding(config, tokens) + blocks + last


def _embedding(config: TransformerConfig, tokens: int) -> int:
    return 2 * tokens * config.in_dim * 4 * config.dim


def _block(config: TransformerConfig, tokens: int, visible: int) -> int:
    products = 2 * tokens * config.dim * (6 * config.dim + 2 * config.ffn_dim)
    return products + 4 * tokens * (visible + config.text_len) * config.dim
