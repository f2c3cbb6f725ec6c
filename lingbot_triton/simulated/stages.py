"""The stages' interface with real geometry and payloads; the work is a sleep of the profile's cost.

What each stage passes on carries the session's fingerprint and the chunk's index, and each stage
checks what it is given, so a chunk that took a wrong turn fails instead of looking right.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from lingbot_triton.options import SessionOptions
from lingbot_triton.settings import Settings
from lingbot_triton.simulated.marks import Mark, fingerprint, write_mark
from lingbot_triton.simulated.profiles import CostProfile, find_profile
from lingbot_triton.stages import Arrays, Parameters
from lingbot_triton.world.family import WORLD_FAST
from lingbot_triton.world.geometry import Geometry, video_frames

STALLING_SEED = 2**62
"""A session with a seed of this + n keeps its denoiser busy for n seconds more every chunk."""

MAX_STALL_SECONDS = 60
SimulatedStage = TypeVar("SimulatedStage", bound="_Simulated")


@dataclass
class SimulatedState:
    """One session in one simulated stage."""

    geometry: Geometry
    fingerprint: int
    chunk_latent_frames: int
    stall_seconds: int = 0
    chunk_index: int = 0
    latent_frames: int = 0
    frames: int = 0
    committed: bool = True


class _Simulated:
    def __init__(self, profile: CostProfile) -> None:
        self.profile = profile

    @classmethod
    def load(cls: type[SimulatedStage], settings: Settings) -> SimulatedStage:
        return cls(find_profile(settings.simulated, settings.simulated_scale))

    def open(self, arrays: Arrays, parameters: Parameters) -> SimulatedState:
        geometry = Geometry(int(parameters["height"]), int(parameters["width"]))
        options = SessionOptions.parse(str(parameters["options"]))
        stall = max(0, options.seed - STALLING_SEED)
        chunk = int(parameters.get("chunk_latent_frames", WORLD_FAST.chunk_latent_frames))
        stall = min(stall, MAX_STALL_SECONDS)
        return SimulatedState(geometry, fingerprint(options.seed), chunk, stall)

    def commit(self, state: SimulatedState) -> None:
        raise RuntimeError(f"{type(self).__name__} has nothing to commit")

    def close(self, state: SimulatedState) -> None:
        pass


class SimulatedPrompt(_Simulated):
    """Any prompt becomes the same small embedding."""

    def encode(self, prompt: str) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        return np.zeros((8, 64), np.float32)


class SimulatedCondition(_Simulated):
    """Conditions that carry their chunk's index; none is ever steady."""

    def step(self, state: SimulatedState, arrays: Arrays, parameters: Parameters) -> Arrays:
        _check("condition", state.chunk_index, int(parameters["chunk_index"]))
        _spend(self.profile.condition)
        condition = _payload(20, state, state.chunk_latent_frames)
        state.chunk_index += 1
        return {"condition": condition, "steady": np.array([False])}


class SimulatedDenoise(_Simulated):
    """Latents that carry the session's fingerprint and the chunk's index."""

    @property
    def about(self) -> dict[str, Any]:
        computes = dict.fromkeys(("control_type", "dtype", "attention", "device"))
        steps = len(self.profile.denoise_steps)
        return computes | {"steps": steps, "lossy": False, "compiled": False}

    def step(self, state: SimulatedState, arrays: Arrays, parameters: Parameters) -> Arrays:
        _check("denoise", state.chunk_index, int(parameters["chunk_index"]))
        _check_payload("condition", arrays["condition"], state)
        if not state.committed:
            raise RuntimeError("a chunk is denoised before the last one was committed")
        _spend(1000 * state.stall_seconds)
        for cost in self.profile.denoise_steps:
            _spend(cost)
        latent = _payload(16, state, state.chunk_latent_frames)
        state.chunk_index += 1
        state.committed = False
        return {"latent": latent, "step_ms": np.array(self.profile.denoise_steps, np.float32)}

    def commit(self, state: SimulatedState) -> None:
        _spend(self.profile.commit)
        state.committed = True


class SimulatedDecode(_Simulated):
    """Grey frames with a mark each."""

    def step(self, state: SimulatedState, arrays: Arrays, parameters: Parameters) -> Arrays:
        latent = arrays["latent"]
        _check_payload("latent", latent, state)
        count = latent.shape[1]
        _spend(self.profile.decode_per_latent_frame * count)
        frames = np.empty(
            (
                video_frames(count, first=state.frames == 0),
                state.geometry.height,
                state.geometry.width,
                3,
            ),
            np.uint8,
        )
        frames.fill(128)
        for frame in frames:
            write_mark(frame, Mark(state.fingerprint, state.chunk_index, state.frames))
            state.frames += 1
        state.latent_frames += count
        state.chunk_index = state.latent_frames // state.chunk_latent_frames
        return {"frames": frames}


def _spend(milliseconds: float) -> None:
    if milliseconds > 0:
        time.sleep(milliseconds / 1000)


def _payload(channels: int, state: SimulatedState, frames: int) -> np.ndarray[Any, Any]:
    """An array of the real size; its first two numbers are the fingerprint and the chunk."""
    array = np.zeros((channels, frames, *state.geometry.latent), np.float32)
    array[0] = state.fingerprint
    array[1] = state.chunk_index
    return array


def _check(what: str, expected: int, given: int) -> None:
    if expected != given:
        raise RuntimeError(f"{what} is at chunk {expected}, not {given}")


def _check_payload(what: str, array: np.ndarray[Any, Any], state: SimulatedState) -> None:
    actual = (int(array[0, 0, 0, 0]), int(array[1, 0, 0, 0]))
    if actual != (state.fingerprint, state.chunk_index):
        raise RuntimeError(
            f"{what} of (session, chunk) {actual} came for {(state.fingerprint, state.chunk_index)}"
        )
