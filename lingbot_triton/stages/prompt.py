"""The prompt stage: text to embedding."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lingbot_triton.settings import Settings
from lingbot_triton.stages import warmup
from lingbot_triton.stages.compute import Compute
from lingbot_triton.world.text import TextEncoder


class PromptStage:
    """Encodes prompts; the only stage without sessions."""

    def __init__(self, encoder: TextEncoder) -> None:
        self.encoder = encoder

    @classmethod
    def load(cls, settings: Settings) -> PromptStage:
        """Raises world.errors.CheckpointError where the checkpoint does not fit."""
        compute = Compute.prepare(settings)
        stage = cls(TextEncoder.load(compute.companions, compute.device, compute.text_dtype))
        if warmup.needed(settings):
            stage.encode("a warm-up")
        return stage

    @torch.inference_mode()
    def encode(self, prompt: str) -> np.ndarray[Any, Any]:
        """Float32 [tokens, text_dim]; raises BadRequest for a prompt of more than 512 tokens."""
        embedded: np.ndarray[Any, Any] = self.encoder.encode(prompt).cpu().numpy()
        return embedded
