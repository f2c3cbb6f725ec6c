"""Sessions on the denoise stage, timed chunk by chunk."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch

from lingbot_tools.gpu_check.cases import CHUNK, Case
from lingbot_tools.gpu_check.timing import count_operations, memory_bytes, timed
from lingbot_triton.options import SessionOptions
from lingbot_triton.stages.denoise import DenoiseStage
from lingbot_triton.stages.denoise_state import DenoiseState

_CONTEXT_TOKENS = 64


@dataclass(frozen=True)
class Chunk:
    """One chunk's times; `latent_ms` is what a caller of the stage waits, control to latent."""

    index: int
    visible_frames: int
    control_ms: float
    step_ms: tuple[float, ...]
    commit_ms: float
    latent_ms: float
    held_bytes: int


def open_session(stage: DenoiseStage, case: Case, options: SessionOptions) -> DenoiseState:
    shape = (_CONTEXT_TOKENS, stage.network.config.text_dim)
    context = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    size: dict[str, Any] = {"height": case.geometry.height, "width": case.geometry.width}
    return stage.open({"context": context}, {"options": options.to_json(), **size})


def random_control(stage: DenoiseStage, case: Case) -> torch.Tensor:
    """A control tensor as the network takes it."""
    channels = stage.network.config.control_width // 4
    return torch.randn((channels, CHUNK, *case.geometry.latent), device=stage.device)


@torch.inference_mode()
def play(stage: DenoiseStage, state: DenoiseState, case: Case, chunks: int) -> list[Chunk]:
    """The session's next chunks, one after the other, commits included."""
    shape = (20, CHUNK, *case.geometry.latent)
    condition = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
    control, caches = random_control(stage, case), state.caches
    played = []
    for index in range(state.chunk_index, state.chunk_index + chunks):
        control_ms = timed(lambda: stage.network.embed_control(caches, control))
        caches.camera = []  # the stage expects none
        started = perf_counter()
        out = stage.step(state, {"condition": condition}, {"chunk_index": index, "keys": "wl"})
        latent_ms = (perf_counter() - started) * 1000
        if not np.isfinite(out["latent"]).all():
            raise ArithmeticError(f"chunk {index} is not finite")
        chunk = Chunk(
            index,
            caches.slots.visible // case.geometry.tokens_per_frame,
            round(control_ms, 3),
            tuple(round(float(step), 3) for step in out["step_ms"]),
            round(timed(lambda: stage.commit(state)), 3),
            round(latent_ms, 3),
            memory_bytes(stage.device)[0],
        )
        played.append(chunk)
    return played


@torch.inference_mode()
def operations(stage: DenoiseStage, state: DenoiseState, case: Case) -> dict[str, int]:
    """Floating-point operations of each part of the session's last chunk."""
    network, control = stage.network, random_control(stage, case)
    modulation = next(iter(state.modulations.values()))
    work = {
        "control": lambda: network.embed_control(state.caches, control),
        "step": lambda: network(state.sample, modulation, state.caches),
        "commit": lambda: network.commit(state.sample, modulation, state.caches),
    }
    return {name: count_operations(stage.device, part) for name, part in work.items()}


def summarize(
    chunks: list[Chunk], operations: dict[str, int], peak: float | None
) -> dict[str, Any]:
    """Medians over the chunks that see as much as the last one, and the shares of `peak`."""
    alike = _with_full_window(chunks)

    def median(values: list[float]) -> float:
        return round(float(np.median(values)), 3)

    # A chunk's first step includes reading its control.
    later = [ms for chunk in alike for ms in (chunk.step_ms[1:] or chunk.step_ms)]
    measured: dict[str, Any] = {
        "visible_frames": chunks[-1].visible_frames,
        "chunks_measured": len(alike),
        "step_ms": median(later),
    }
    for name in ("control_ms", "commit_ms", "latent_ms"):
        measured[name] = median([getattr(chunk, name) for chunk in alike])
    shares = {
        name: round(count / (measured[f"{name}_ms"] / 1000) / peak, 4) if peak else None
        for name, count in operations.items()
    }
    return measured | {"tflop": {k: v / 1e12 for k, v in operations.items()}, "peak_share": shares}


def growth(chunks: list[Chunk]) -> int:
    """Bytes that the last chunk left allocated beyond the first that saw a full window."""
    alike = _with_full_window(chunks)
    return alike[-1].held_bytes - alike[0].held_bytes


def _with_full_window(chunks: list[Chunk]) -> list[Chunk]:
    return [chunk for chunk in chunks if chunk.visible_frames == chunks[-1].visible_frames]
