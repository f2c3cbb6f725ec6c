"""The decode stage: clean latents to frames."""

from __future__ import annotations

import numpy as np
import torch

from lingbot_triton.settings import Settings
from lingbot_triton.stages import Arrays, Parameters, warmup
from lingbot_triton.stages.compute import DeviceConfig, to_device
from lingbot_triton.world.family import find_family
from lingbot_triton.world.vae import Decoder, Memory, to_uint8


class DecodeStage:
    """VAE decoder; implements `stages.SessionStage`."""

    def __init__(self, decoder: Decoder, device: torch.device) -> None:
        self.decoder = decoder
        self.device = device

    @classmethod
    def load(cls, settings: Settings) -> DecodeStage:
        """Raises world.errors.CheckpointError where the checkpoint does not fit."""
        compute = DeviceConfig.prepare(settings)
        decoder = Decoder.load(compute.companions, compute.device, compute.vae_dtype)
        stage = cls(decoder, compute.device)
        if warmup.needed(settings):
            frames = find_family(compute.root).chunk_latent_frames
            warmup.warm_decode(stage, settings.default_area, frames)
        return stage

    @torch.inference_mode()
    def open(self, arrays: Arrays, parameters: Parameters) -> Memory:
        """A session's decoder before its first latent frame; needs no input."""
        return self.decoder.open()

    @torch.inference_mode()
    def step(self, state: Memory, arrays: Arrays, parameters: Parameters) -> Arrays:
        """`frames`, uint8 [m, H, W, 3], of the next n latent frames, `latent` [16, n, h, w].

        The decoder goes frame by frame whatever n is, so n changes no bit of the frames.
        """
        latent = to_device(arrays["latent"], self.device)
        frames = [
            to_uint8(self.decoder.decode(state, latent[:, index : index + 1]))
            for index in range(latent.shape[1])
        ]
        return {"frames": np.concatenate([part.cpu().numpy() for part in frames])}

    def commit(self, state: Memory) -> None:
        """Nothing: a step leaves no work behind."""

    def close(self, state: Memory) -> None:
        """Drop the decoder's memory."""
        state.features = []
