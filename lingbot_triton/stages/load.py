"""Which class a stage's name stands for; weights are imported only where they are used."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol

import numpy as np

from lingbot_triton.settings import Settings
from lingbot_triton.stage import Stage


class PromptEncoder(Protocol):
    """What the Triton layer needs of `prompt`."""

    def encode(self, prompt: str) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        """The prompt's embedding, float32 [tokens, text width]."""


def load_stage(stage: Stage, settings: Settings) -> Any:
    """The stage, its weights loaded: a `SessionStage`, or for `prompt` an encoder of prompts.

    Each worker imports its own libraries only: they are most of a worker's start.
    """
    path = stage.simulated if settings.simulated else stage.implementation
    module, _, name = path.partition(":")
    return getattr(import_module(module), name).load(settings)
