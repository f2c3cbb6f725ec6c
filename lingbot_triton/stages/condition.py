"""The condition stage: the picture, and where in the session a chunk is, to its condition."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from lingbot_triton.errors import BadRequest
from lingbot_triton.options import SessionOptions
from lingbot_triton.settings import Settings
from lingbot_triton.stages import Arrays, Parameters, chunk_latent_frames, warmup
from lingbot_triton.stages.compute import DeviceConfig, to_device
from lingbot_triton.stages.condition_cache import ConditionCache, condition_key
from lingbot_triton.world.family import WORLD_FAST, ModelFamily, find_family
from lingbot_triton.world.geometry import Geometry
from lingbot_triton.world.vae import Encoder, Memory

_MASK_CHANNELS = 4


@dataclass
class ConditionState:
    """One session's encoder."""

    geometry: Geometry
    chunk_latent_frames: int
    memory: Memory
    picture: torch.Tensor
    """[3, H, W] in [-1, 1]."""
    reuse_steady: bool = True
    """Whether a condition that repeats is encoded once; else each is encoded, and none shared."""
    key: bytes | None = None
    """What other sessions' conditions are shared under; None where they are not."""
    chunk: int = 0
    """The chunk whose condition is next."""
    encoded: int = 0
    """Chunks that this session's own encoder has seen; fewer where others' conditions served."""
    steady: Arrays | None = None
    """The output of every further step, once it cannot change any more."""


class ConditionStage:
    """VAE encoder; implements `stages.SessionStage`."""

    def __init__(
        self,
        encoder: Encoder,
        device: torch.device,
        cache_bytes: int = 0,
        family: ModelFamily = WORLD_FAST,
    ) -> None:
        self.encoder = encoder
        self.device = device
        self.family = family
        self.cache = ConditionCache(cache_bytes)

    @classmethod
    def load(cls, settings: Settings) -> ConditionStage:
        """Raises world.errors.CheckpointError where the checkpoint does not fit."""
        compute = DeviceConfig.prepare(settings)
        encoder = Encoder.load(compute.companions, compute.device, compute.vae_dtype)
        family = find_family(compute.root)
        if warmup.needed(settings):
            warmup.warm_encoder(encoder, settings.default_area, family.chunk_latent_frames)
        return cls(encoder, compute.device, settings.condition_cache_bytes, family)

    @torch.inference_mode()
    def open(self, arrays: Arrays, parameters: Parameters) -> ConditionState:
        """From `picture`, uint8 [h, w, 3], and `height` and `width` of the session's frames.

        `chunk_latent_frames` defaults to the family's.

        With the option `reuse_steady_condition` off, each condition is really encoded.
        """
        geometry = Geometry(int(parameters["height"]), int(parameters["width"]))
        picture = arrays["picture"]
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
            raise BadRequest(
                f"the picture is {picture.dtype} {list(picture.shape)}; it must be uint8 [h, w, 3]"
            )
        pixels = to_device(picture, self.device)
        scaled = pixels.permute(2, 0, 1).float().div_(255).sub_(0.5).div_(0.5)
        size = (geometry.height, geometry.width)
        fitted = functional.interpolate(scaled.unsqueeze(0), size=size, mode="bicubic")[0]
        state = self.open_scaled(fitted, chunk_latent_frames(parameters, self.family))
        options = SessionOptions.parse(str(parameters.get("options", "{}")))
        state.reuse_steady = options.reuse_steady_condition
        if state.reuse_steady:
            state.key = condition_key(picture, geometry, state.chunk_latent_frames)
        return state

    @torch.inference_mode()
    def open_scaled(self, picture: torch.Tensor, chunk_frames: int = 0) -> ConditionState:
        """The same from a picture [3, H, W] in [-1, 1] that has the frames' size already, for
        chunks of `chunk_frames` latent frames, 0 for the family's.
        """
        geometry = Geometry(picture.shape[1], picture.shape[2])
        frames = chunk_frames or self.family.chunk_latent_frames
        return ConditionState(geometry, frames, self.encoder.open(), picture.to(self.device))

    @torch.inference_mode()
    def step(self, state: ConditionState, arrays: Arrays, parameters: Parameters) -> Arrays:
        """The next chunk's `condition`, float32 [20, n, h, w], and `steady`, bool [1].

        `steady` says that every later condition equals this one; further steps still answer, with
        the very same arrays.
        """
        if state.steady is not None:
            return state.steady
        outputs = self.cache.get(state.key, state.chunk) if state.key else None
        if outputs is None:
            # The encoder catches up where other sessions' conditions had served until now.
            while state.encoded <= state.chunk:
                outputs = self._encode(state)
        assert outputs is not None
        if state.key:
            self.cache.add(state.key, state.chunk, outputs)
        state.chunk += 1
        if outputs["steady"][0]:
            state.steady = outputs
            state.memory.features = []
        return outputs

    def _encode(self, state: ConditionState) -> Arrays:
        """Outputs of the next chunk that this session's encoder has not seen."""
        latents = [self._next_latent(state) for _ in range(state.chunk_latent_frames)]
        constant = state.memory.steady
        steady = constant is not None and all(latent is constant for latent in latents)
        latent = torch.cat(latents, dim=1)
        mask = latent.new_zeros(_MASK_CHANNELS, *latent.shape[1:])
        if state.encoded == 0:
            mask[:, 0] = 1
        state.encoded += 1
        return {
            "condition": torch.cat((mask, latent)).cpu().numpy(),
            "steady": np.array([steady]),
        }

    def _next_latent(self, state: ConditionState) -> torch.Tensor:
        if not state.memory.started:
            return self.encoder.encode_picture(state.memory, state.picture)
        geometry = state.geometry
        size = geometry.height, geometry.width
        return self.encoder.encode_black_frames(state.memory, *size, state.reuse_steady)

    def commit(self, state: ConditionState) -> None:
        """Nothing: a step leaves no work behind."""

    def close(self, state: ConditionState) -> None:
        """Drop the encoder's memory."""
        state.memory.features = []
        state.steady = None
