"""How well pairs of guesses stand for what may come, where nobody can know what comes."""

from __future__ import annotations

import torch
from torch.nn import functional

from lingbot_triton.options import CHUNK_LATENT_FRAMES
from lingbot_triton.tiny_world.batches import GRID, by_chunk

_BLOCKS = ((2, 2), (4, 4), (2 * GRID[1], 2 * GRID[2]))
"""Latents of a frame that are compared as one, rows and columns: a token, some, all."""
_ROUNDING = 1e-4
"""Keeps a distance of nothing from having an endless gradient."""


def energy_score(
    guesses: torch.Tensor, clean: torch.Tensor, history: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """The energy score of each chunk, [2b, n]; the lower the better.

    Everything else is [2b, 16, 3n, h, w] but the channels' weights [16, 1, 1, 1]. Films b + i are
    films i again, played with other noise: guesses x and x' of the same truth y. The score
    |x - y| - |x - x'| / 2 (Gneiting and Raftery 2007, equation 22) is least on average for guesses
    that are spread as the truth is. A squared error is least for their mean, which is a blur.

    Distances are those of a chunk's blocks together with the frame before it, in `history` for
    guesses, so that what is made up has to fit what was made up before.
    """
    swapped = [torch.cat(part.chunk(2)[::-1]) for part in (guesses, history)]
    to_truth = _distances(guesses - clean, history - clean, weights)
    apart = _distances(guesses - swapped[0], history - swapped[1], weights)
    return to_truth - apart / 2


def _distances(chunks: torch.Tensor, before: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Mean root mean square [2b, n] over blocks of all sizes, of differences."""
    own, last = (by_chunk((weights * part.square()).sum(dim=1)) for part in (chunks, before))
    # The first chunk has nothing before it.
    previous = torch.cat((torch.zeros_like(last[:, :1, -1]), last[:, :-1, -1]), dim=1)
    square = own.sum(dim=2) + previous
    square = square / (chunks.shape[1] * (CHUNK_LATENT_FRAMES + 1))  # [2b, n, h, w]
    means = []
    for rows, columns in _BLOCKS:
        blocks = functional.avg_pool2d(square, (rows, columns))
        means.append((blocks + _ROUNDING).sqrt().mean(dim=(2, 3)))
    return torch.stack(means).mean(dim=0)
