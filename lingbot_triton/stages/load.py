"""Which class a stage's name stands for; weights are imported only where they are used."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from lingbot_triton.settings import Settings
from lingbot_triton.simulated.stages import (
    SimulatedCondition,
    SimulatedDecode,
    SimulatedDenoise,
    SimulatedPrompt,
)
from lingbot_triton.stages import SessionStage

SIMULATED: dict[str, type[SimulatedCondition | SimulatedDenoise | SimulatedDecode]] = {
    "condition": SimulatedCondition,
    "denoise": SimulatedDenoise,
    "decode": SimulatedDecode,
}


class PromptEncoder(Protocol):
    """What the Triton layer needs of `prompt`."""

    def encode(self, prompt: str) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        """The prompt's embedding, float32 [tokens, text width]."""


def load_prompt_stage(settings: Settings) -> PromptEncoder:
    """The prompt stage, its weights loaded."""
    if settings.simulated:
        return SimulatedPrompt.load(settings)
    from lingbot_triton.stages.prompt import PromptStage

    return PromptStage.load(settings)


def load_session_stage(name: str, settings: Settings) -> SessionStage:
    """The stage `name`, its weights loaded; KeyError for a name that is none."""
    if settings.simulated:
        return SIMULATED[name].load(settings)
    # Each worker imports its own libraries only: they are most of a worker's start.
    if name == "condition":
        from lingbot_triton.stages.condition import ConditionStage

        return ConditionStage.load(settings)
    if name == "denoise":
        from lingbot_triton.stages.denoise import DenoiseStage

        return DenoiseStage.load(settings)
    if name == "decode":
        from lingbot_triton.stages.decode import DecodeStage

        return DecodeStage.load(settings)
    raise KeyError(f"no stage is called {name!r}")
