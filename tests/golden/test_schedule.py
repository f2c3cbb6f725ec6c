"""The denoising schedule, exactly."""

from __future__ import annotations

from lingbot_triton.world.schedule import STEP_INDICES, Schedule


def test_timesteps_and_sigmas_are_exact(golden):
    for shift, expected in golden.json("schedule").items():
        schedule = Schedule.shifted(float(shift))
        assert list(STEP_INDICES) == expected["indices"]
        assert list(schedule.timesteps) == expected["timesteps"]
        assert list(schedule.sigmas) == expected["sigmas"]
