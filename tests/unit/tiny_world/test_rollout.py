"""The network's own films: what is given to them, and what is not."""

from __future__ import annotations

import torch

from lingbot_triton.options import CHUNK_LATENT_FRAMES
from lingbot_triton.tiny_world.batches import GRID, Batch
from lingbot_triton.tiny_world.dit_training import token_errors
from lingbot_triton.tiny_world.layout import Layout
from lingbot_triton.tiny_world.network import NetworkSize, build_network
from lingbot_triton.tiny_world.rollout import Rollout, roll_out
from lingbot_triton.world.schedule import Schedule

LATE = Layout((0, 3, 4, 5), (0, 39, 42, 45), (False, False, True, True), window=9, sink=3)


def batch(seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def randoms(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    frames = len(LATE.chunks) * CHUNK_LATENT_FRAMES
    size = frames, 2 * GRID[1], 2 * GRID[2]
    tokens = GRID[0] * GRID[1] * GRID[2]
    control = randoms(1, len(LATE.chunks), tokens, 4 * 384)
    return Batch(LATE, randoms(1, 16, *size), randoms(1, 20, *size), control, [randoms(5, 64)])


@torch.inference_mode()
def rolled(given: Batch) -> Rollout:
    network = build_network(NetworkSize(dim=48, layers=2, heads=2, ffn=64).config(), 0)
    with torch.no_grad():
        torch.nn.init.normal_(network.head.head.weight, std=0.1)
    return roll_out(network, given, Schedule.shifted(10.0), torch.Generator().manual_seed(1))


def test_chunks_that_are_not_learnt_are_true_and_the_others_follow_from_them() -> None:
    given = batch(0)
    film = rolled(given).latents
    true = slice(0, 2 * CHUNK_LATENT_FRAMES)
    own = slice(true.stop, None)
    assert torch.equal(film[:, :, true], given.clean[:, :, true])
    assert not torch.isclose(film[:, :, own], given.clean[:, :, own]).any(dim=1).all()
    given.clean[:, :, own] += 1
    assert torch.equal(rolled(given).latents, film), "the truth of what is learnt is not looked at"
    given.clean[:, :, true] += 1
    assert not torch.equal(rolled(given).latents[:, :, own], film[:, :, own])


def test_a_token_that_nobody_can_foresee_counts_once_not_squared() -> None:
    clean = torch.zeros(1, 16, 6, 4, 6)
    guess = clean.clone()
    guess[:, :, 4, 2:, :2] = 10.0  # one token of the second chunk's 18
    found = token_errors(guess, clean, torch.ones(16, 1, 1, 1))
    torch.testing.assert_close(found, torch.tensor([[0.0, 10 / 18]]), atol=0.011, rtol=0)
    halves = torch.cat((torch.zeros(8, 1, 1, 1), 2 * torch.ones(8, 1, 1, 1)))
    torch.testing.assert_close(token_errors(guess, clean, halves), found)
