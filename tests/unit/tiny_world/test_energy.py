"""The energy score prefers guesses that are spread as the truth is."""

from __future__ import annotations

import torch

from lingbot_triton.tiny_world.batches import GRID
from lingbot_triton.tiny_world.energy import energy_score

FILMS, CHUNKS = 400, 2
SHAPE = (FILMS, 16, 3 * CHUNKS, 2 * GRID[1], 2 * GRID[2])
WEIGHTS = torch.ones(16, 1, 1, 1)


def coins(seed: int) -> torch.Tensor:
    """Films that are 1 or -1 everywhere, with equal odds."""
    signs = torch.randint(2, (FILMS, 1, 1, 1, 1), generator=torch.Generator().manual_seed(seed))
    return (2.0 * signs - 1).expand(SHAPE)


def score(one: torch.Tensor, other: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    guesses = torch.cat((one, other))
    return energy_score(guesses, torch.cat((truth, truth)), guesses, WEIGHTS).mean(0)


def test_spread_guesses_are_better_than_their_mean() -> None:
    truth = coins(0)
    blur = torch.zeros(SHAPE)
    spread = score(coins(1), coins(2), truth)
    assert torch.all(spread < 0.6 * score(blur, blur, truth))
    assert torch.all(spread < 0.6 * score(coins(1), coins(1), truth)), "not spread, but the same"


def test_it_is_the_distance_where_both_guesses_agree() -> None:
    truth = torch.zeros(SHAPE)
    right = score(truth, truth, truth)
    wrong = energy_score(
        torch.full((2 * FILMS, *SHAPE[1:]), 2.0),
        torch.cat((truth, truth)),
        truth.repeat(2, 1, 1, 1, 1),
        WEIGHTS,
    ).mean(0)
    assert torch.all(right < 0.01)
    # Three frames of four are 2 away; the one before them, in the history, is right.
    torch.testing.assert_close(wrong, torch.full((CHUNKS,), 3.0**0.5), atol=1e-2, rtol=0)


def test_what_is_invented_counts_less_where_the_frame_before_was_invented_too() -> None:
    truth = torch.zeros((2, *SHAPE[1:]))
    history = truth.clone()
    history[:, :, 2] = 3.0  # the last frame of the first chunk
    guesses = truth.clone().requires_grad_()
    lost = energy_score(guesses + 0.5, truth, history, WEIGHTS)
    kept = energy_score(guesses + 0.5, truth, truth, WEIGHTS)
    pulls = [
        torch.autograd.grad(value[:, 1].sum(), guesses)[0].abs().sum() for value in (lost, kept)
    ]
    assert pulls[0] < 0.4 * pulls[1]
    torch.testing.assert_close(lost[:, 0], kept[:, 0])
