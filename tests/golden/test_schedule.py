"""The denoising schedule, exactly."""

from __future__ import annotations

from lingbot_triton.presets import FAST
from lingbot_triton.world.schedule import Schedule


def test_timesteps_and_sigmas_are_exact(golden):
    for shift, expected in golden.json("schedule").items():
        schedule = Schedule.shifted(float(shift), FAST.step_indices)
        assert list(FAST.step_indices) == expected["indices"]
        assert list(schedule.timesteps) == expected["timesteps"]
        assert list(schedule.sigmas) == expected["sigmas"]
