"""Noise levels, noise streams and the arithmetic between steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lingbot_triton.presets import FAST
from lingbot_triton.world.schedule import Noise, Schedule, clean, renoise

CPU = torch.device("cpu")


@pytest.mark.parametrize("shift", [0.5, 1.0, 3.0, 5.0, 10.0, 40.0])
def test_levels_fall_and_belong_to_their_timesteps(shift):
    schedule = Schedule.shifted(shift, FAST.step_indices)
    for levels in (schedule.sigmas, schedule.clean_sigmas, schedule.renoise_sigmas):
        assert list(levels) == sorted(levels, reverse=True)
        assert tuple(int(level * 1000) for level in levels) == schedule.timesteps


def test_levels_are_the_first_and_second_step_of_a_shared_timestep():
    levels = 10 * np.linspace(0.999, 0, 1001)[:-1]
    levels /= 1 + 0.9 * levels
    same = levels[(levels * 1000).astype(int) == 947]
    schedule = Schedule.shifted(10.0, FAST.step_indices)
    assert len(same) == 5
    assert schedule.clean_sigmas[2] == pytest.approx(same[0], abs=1e-7)
    assert schedule.renoise_sigmas[2] == pytest.approx(same[1], abs=1e-7)


def test_renoise_undoes_clean_at_one_level():
    noise, x0 = torch.randn(50), torch.randn(50, dtype=torch.float64)
    sample = renoise(x0, noise, 0.75)
    assert sample.dtype == torch.float32
    flow = (noise.double() - x0).float()
    back = clean(sample, flow, 0.75)
    assert back.dtype == torch.float64
    torch.testing.assert_close(back, x0, rtol=0, atol=1e-6)


def test_noise_repeats_by_seed_and_goes_on_from_chunk_to_chunk():
    one, same, other = (Noise(seed, 4) for seed in (3, 3, 4))
    chunks = [one.draw((2, 3), CPU) for _ in range(2)]
    for chunk in chunks:
        assert len(chunk) == 4
        for mine, again in zip(chunk, same.draw((2, 3), CPU), strict=True):
            assert torch.equal(mine, again)
    drawn = [*chunks[0], *chunks[1], *other.draw((2, 3), CPU)]
    assert len({tensor.sum().item() for tensor in drawn}) == len(drawn)


def test_any_seed_is_accepted():
    for seed in (0, 2**63 - 1):
        assert len(Noise(seed, 4).draw((1,), CPU)) == 4
