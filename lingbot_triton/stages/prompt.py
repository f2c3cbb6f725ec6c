"""The prompt stage: text to embedding."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch

from lingbot_triton.settings import Settings
from lingbot_triton.stages import warmup
from lingbot_triton.stages.compute import DeviceConfig
from lingbot_triton.world.text import TextEncoder

_KEPT_PROMPTS = 32
"""Embeddings of the newest prompts, at most 8 MiB each in the released size."""


class PromptStage:
    """Encodes prompts; the only stage without sessions.

    Triton's own response cache will not do: it answers a refused request, when it comes again,
    with a success that holds nothing.
    """

    def __init__(self, encoder: TextEncoder) -> None:
        self.encoder = encoder
        self._kept = lru_cache(_KEPT_PROMPTS)(self._encode)

    @classmethod
    def load(cls, settings: Settings) -> PromptStage:
        """Raises world.errors.CheckpointError where the checkpoint does not fit."""
        compute = DeviceConfig.prepare(settings)
        stage = cls(TextEncoder.load(compute.companions, compute.device, compute.text_dtype))
        if warmup.needed(settings):
            stage.encode("a warm-up")
        return stage

    def encode(self, prompt: str) -> np.ndarray[Any, Any]:
        """Float32 [tokens, text_dim], read-only: the same prompt again is not encoded again.

        Raises BadRequest for a prompt of more than 512 tokens.
        """
        return self._kept(prompt)

    @torch.inference_mode()
    def _encode(self, prompt: str) -> np.ndarray[Any, Any]:
        embedded: np.ndarray[Any, Any] = self.encoder.encode(prompt).cpu().numpy()
        embedded.flags.writeable = False
        return embedded
