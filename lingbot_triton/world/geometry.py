"""Sizes of frames, latents and tokens: the constants of Wan 2.1's VAE and of the transformer."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lingbot_triton.world.errors import InputError

TEMPORAL_STRIDE = 4
"""Video frames per latent frame; a session's very first latent frame gives only one."""

SPATIAL_STRIDE = 8
"""Pixels per latent cell in both directions."""

PATCH = 2
"""Latent cells per token in both directions."""

FRAMES_PER_SECOND = 16

MIN_SIDE = SPATIAL_STRIDE * PATCH
"""Pixels: sides of frames are multiples of this."""


@dataclass(frozen=True)
class Geometry:
    """Pixel height and width of a session's frames, both multiples of 16."""

    height: int
    width: int

    @property
    def latent(self) -> tuple[int, int]:
        """Latent height and width."""
        return self.height // SPATIAL_STRIDE, self.width // SPATIAL_STRIDE

    @property
    def tokens_per_frame(self) -> int:
        """Transformer tokens of one latent frame."""
        height, width = self.latent
        return height // PATCH * (width // PATCH)

    @classmethod
    def fit(cls, picture_height: int, picture_width: int, max_area: int) -> Geometry:
        """The size nearest to `max_area` pixels with the picture's aspect ratio, floored to 16.

        Raises InputError where a side would be shorter than 16 pixels.
        """
        aspect = picture_height / picture_width
        height = int(math.sqrt(max_area * aspect) // MIN_SIDE) * MIN_SIDE
        width = int(math.sqrt(max_area / aspect) // MIN_SIDE) * MIN_SIDE
        if height < MIN_SIDE or width < MIN_SIDE:
            raise InputError(
                f"a picture of {picture_width}x{picture_height} pixels becomes {width}x{height} "
                f"at an area of {max_area}; each side needs at least {MIN_SIDE}"
            )
        return cls(height, width)


def video_frames(latent_frames: int, *, first: bool) -> int:
    """Video frames that `latent_frames` decode to; the very first latent frame gives only one."""
    frames = latent_frames * TEMPORAL_STRIDE
    return frames - (TEMPORAL_STRIDE - 1) if first else frames
