"""The denoise stage: condition and control to a clean latent."""

from __future__ import annotations

from typing import Any

import torch

from lingbot_triton.errors import SessionLimit
from lingbot_triton.options import SessionOptions
from lingbot_triton.presets import FAST, Preset, find_preset
from lingbot_triton.settings import Settings
from lingbot_triton.stages import Arrays, Parameters, chunk_latent_frames, warmup
from lingbot_triton.stages.budget import (
    MemoryBudget,
    SessionBytes,
    find_vae_session_bytes,
    measure,
    ran_out,
)
from lingbot_triton.stages.compute import (
    DeviceConfig,
    Stopwatch,
    device_name,
    synchronize,
    to_device,
)
from lingbot_triton.stages.denoise_state import DenoiseState, open_state
from lingbot_triton.world.control import control
from lingbot_triton.world.dit import WorldTransformer
from lingbot_triton.world.family import WORLD_FAST, ModelFamily, find_family
from lingbot_triton.world.geometry import Geometry
from lingbot_triton.world.loading import load_transformer
from lingbot_triton.world.memory import charged_bytes, session_bytes
from lingbot_triton.world.schedule import COMMIT_TIMESTEP, clean, renoise


class DenoiseStage:
    """The causal transformer; implements `stages.SessionStage`."""

    def __init__(
        self,
        network: WorldTransformer,
        device: torch.device,
        preset: Preset = FAST,
        budget_bytes: int = 0,
        vae_session_bytes: SessionBytes | None = None,
        family: ModelFamily = WORLD_FAST,
    ) -> None:
        """Sessions take at most `budget_bytes` together; 0 measures what the device has left."""
        self.network = network
        self.device = device
        self.preset = preset
        self.measures = not budget_bytes
        self.budget = MemoryBudget(budget_bytes or measure(device))
        self.vae_session_bytes = vae_session_bytes
        self.family = family

    @classmethod
    def load(cls, settings: Settings) -> DenoiseStage:
        """Raises CheckpointError where the checkpoint does not fit, AttentionError where the
        attention that is asked for cannot run.
        """
        compute = DeviceConfig.prepare(settings)
        network = load_transformer(
            compute.root,
            compute.device,
            compute.dtype,
            attention=settings.attention,
            compiled=settings.compile,
        )
        preset = find_preset(settings.preset)
        budget = settings.kv_budget_bytes
        stage = cls(
            network,
            compute.device,
            preset,
            budget,
            find_vae_session_bytes(compute, budget),
            find_family(compute.root),
        )
        if warmup.needed(settings):
            warmup.warm_denoise(
                stage, network.config.text_dim, settings.session_defaults, stage.family
            )
        return stage

    @property
    def about(self) -> dict[str, Any]:
        """What computes here, for the READY answer of each session."""
        kernels = self.network.kernels
        return {
            "preset": self.preset.name,
            "steps": len(self.preset.step_indices),
            "lossy": self.preset.lossy,
            "control_type": self.network.config.control_type,
            "dtype": str(self.network.dtype).removeprefix("torch."),
            "attention": kernels.attention.name,
            "compiled": kernels.compiled,
            "device": device_name(self.device),
        }

    def kv_bytes(self, options: SessionOptions, geometry: Geometry, chunk_frames: int = 0) -> int:
        """Bytes that `open` allocates for such a session, and that it keeps until it is closed;
        its chunks have `chunk_frames` latent frames, 0 for the family's.

        From a chunk's control to its commit it holds `world.memory.chunk_bytes` more.
        """
        frames = options.cache_latent_frames(chunk_frames or self.family.chunk_latent_frames)
        return session_bytes(self.network.config, frames, geometry, self.network.dtype.itemsize)

    @torch.inference_mode()
    def open(self, arrays: Arrays, parameters: Parameters) -> DenoiseState:
        """From `context`, float32 [tokens, text_dim], and `options` (JSON), `height`, `width`,
        and `chunk_latent_frames`, which defaults to the family's.

        Raises SessionLimit, and keeps nothing, where there is no memory for the session.
        """
        options = SessionOptions.parse(str(parameters["options"]))
        geometry = Geometry(int(parameters["height"]), int(parameters["width"]))
        frames = chunk_latent_frames(parameters, self.family)
        size = (geometry.height, geometry.width)
        needed = charged_bytes(
            self.network.config,
            options.cache_latent_frames(frames),
            frames,
            geometry,
            self.network.dtype.itemsize,
            self.vae_session_bytes(*size) if self.vae_session_bytes else 0,
        )
        if self.measures and not self.budget.taken:
            # Other models may have come to the device since.
            self.budget.limit = measure(self.device)
        self.budget.take(needed)
        try:
            state = open_state(
                self.network,
                to_device(arrays["context"], self.device),
                options,
                geometry,
                frames,
                self.preset.step_indices,
            )
        except BaseException as error:
            self.budget.give_back(needed)
            if ran_out(error):
                if self.device.type == "cuda":
                    torch.cuda.empty_cache()
                raise SessionLimit(
                    f"no memory is left for the session, which needs {needed} bytes"
                ) from None
            raise
        state.reserved = needed
        return state

    @torch.inference_mode()
    def step(self, state: DenoiseState, arrays: Arrays, parameters: Parameters) -> Arrays:
        """Denoise chunk `chunk_index` under `poses` [n, 4, 4], or else under the held `keys`.

        Needs `condition`, float32 [20, n, h, w]. Returns `latent`, float32 [16, n, h, w],
        `step_ms`, float32 [steps], and, asked to `record`, the network's `flows`
        [steps, 16, n, h, w].
        Raises BadRequest, before anything has changed, for a control that cannot be followed, and
        RuntimeError for a chunk out of turn.
        """
        index = int(parameters["chunk_index"])
        if state.uncommitted or index != state.chunk_index:
            raise RuntimeError(
                f"step for chunk {index}, but chunk {state.chunk_index} is "
                + ("not committed" if state.uncommitted else "next")
            )
        keys = str(parameters.get("keys", ""))
        relative = state.follow(arrays.get("poses"), keys)
        network, config = self.network, self.network.config
        state.sample[config.out_dim :] = to_device(arrays["condition"], self.device)
        state.uncommitted = True
        network.begin_chunk(state.caches)
        stopwatch = Stopwatch(self.device)
        network.embed_control(
            state.caches, control(config.control_type, relative, state.directions, keys)
        )
        flows = self._denoise(state, stopwatch)
        outputs: Arrays = {
            "latent": state.sample[: config.out_dim].to("cpu", copy=True).numpy(),
            "step_ms": stopwatch.read(),
        }
        if parameters.get("record"):
            outputs["flows"] = torch.stack(flows).cpu().numpy()
        return outputs

    def _denoise(self, state: DenoiseState, stopwatch: Stopwatch) -> list[torch.Tensor]:
        """Take the schedule's steps; leaves the clean latent in `state.sample`.

        Nothing here waits for the device, so its queue never runs empty.
        """
        schedule, noisy = state.schedule, state.sample[: self.network.config.out_dim]
        noisy.copy_(state.noise[0])
        flows = []
        for step, (timestep, sigma) in enumerate(
            zip(schedule.timesteps, schedule.clean_sigmas, strict=True), start=1
        ):
            flow = self.network(state.sample, state.modulations[timestep], state.caches)
            x0 = clean(noisy, flow, sigma)
            if step < len(schedule.timesteps):
                x0 = renoise(x0, state.noise[step], schedule.renoise_sigmas[step])
            noisy.copy_(x0)
            flows.append(flow)
            stopwatch.mark()
        return flows

    @torch.inference_mode()
    def commit(self, state: DenoiseState) -> None:
        """Write the clean latent's keys and values, and get ready for the next chunk's control.

        Raises RuntimeError where no step went before.
        """
        if not state.uncommitted:
            raise RuntimeError(f"commit, but chunk {state.chunk_index} was not denoised yet")
        self.network.commit(state.sample, state.modulations[COMMIT_TIMESTEP], state.caches)
        state.draw_noise()
        state.chunk_index += 1
        state.uncommitted = False
        synchronize(self.device)  # who waits for the commit, and times it, waits for what it does

    def close(self, state: DenoiseState) -> None:
        """Give back the caches at once, even if the state is still referred to."""
        self.budget.give_back(state.reserved)
        state.reserved = 0
        state.caches.release()
        state.modulations.clear()
        state.noise.clear()
