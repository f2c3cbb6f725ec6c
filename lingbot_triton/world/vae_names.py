"""Names of the VAE's weights: from those of Wan's own file to those of diffusers, used here."""

from __future__ import annotations

import re

_NAMES = (
    (r"^conv1\.", "quant_conv."),
    (r"^conv2\.", "post_quant_conv."),
    (r"\.conv1\.", ".conv_in."),
    (r"\.head\.0\.", ".norm_out."),
    (r"\.head\.2\.", ".conv_out."),
    (r"\.middle\.0\.", ".mid_block.resnets.0."),
    (r"\.middle\.1\.", ".mid_block.attentions.0."),
    (r"\.middle\.2\.", ".mid_block.resnets.1."),
    (r"\.downsamples\.", ".down_blocks."),
    (r"\.residual\.0\.", ".norm1."),
    (r"\.residual\.2\.", ".conv1."),
    (r"\.residual\.3\.", ".norm2."),
    (r"\.residual\.6\.", ".conv2."),
    (r"\.shortcut\.", ".conv_shortcut."),
)
_UP_BLOCK_LAYERS = 4
"""Three residual blocks and an upsampling, which Wan's own names number through."""


def converted_name(name: str) -> str:
    """What a weight of Wan's own file is called in diffusers; other names stay as they are."""
    for pattern, replacement in _NAMES:
        name = re.sub(pattern, replacement, name)

    def grouped(match: re.Match[str]) -> str:
        block, layer = divmod(int(match[1]), _UP_BLOCK_LAYERS)
        kind = f"resnets.{layer}" if layer < _UP_BLOCK_LAYERS - 1 else "upsamplers.0"
        return f"decoder.up_blocks.{block}.{kind}."

    return re.sub(r"^decoder\.upsamples\.(\d+)\.", grouped, name)
