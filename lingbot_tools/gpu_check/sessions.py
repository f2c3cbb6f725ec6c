"""Sessions on the denoise stage, timed chunk by chunk."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch

from lingbot_tools.gpu_check.cases import Case
from lingbot_tools.gpu_check.flops import commit_flops, control_flops, pass_flops
from lingbot_tools.gpu_check.timing import held_bytes, timed
from lingbot_triton.options import SessionOptions
from lingbot_triton.stages.denoise import DenoiseStage, DenoiseState
from lingbot_triton.world.family import WORLD_FAST

CHUNK = WORLD_FAST.chunk_latent_frames

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
    context = np.random.default_rng(0).standard_normal(
        (_CONTEXT_TOKENS, stage.network.config.text_dim), dtype=np.float32
    )
    parameters: dict[str, Any] = {
        "options": options.to_json(),
        "height": case.geometry.height,
        "width": case.geometry.width,
    }
    return stage.open({"context": context}, parameters)


def random_control(stage: DenoiseStage, case: Case) -> torch.Tensor:
    """A control tensor as `read_control` takes it."""
    channels = stage.network.config.control_width // 4
    shape = (channels, CHUNK, *case.geometry.latent)
    return torch.randn(shape, device=stage.device)


@torch.inference_mode()
def play(stage: DenoiseStage, state: DenoiseState, case: Case, chunks: int) -> list[Chunk]:
    """The session's next chunks, one after the other, commits included."""
    shape = (20, CHUNK, *case.geometry.latent)
    condition = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
    control = random_control(stage, case)
    played = []
    for index in range(state.chunk_index, state.chunk_index + chunks):
        caches = state.caches
        control_ms = timed(stage.device, lambda: stage.network.read_control(caches, control))  # noqa: B023
        caches.camera = []  # as the stage finds it
        started = perf_counter()
        out = stage.step(state, {"condition": condition}, {"chunk_index": index, "keys": "wl"})
        latent_ms = (perf_counter() - started) * 1000
        if not np.isfinite(out["latent"]).all():
            raise ArithmeticError(f"chunk {index} is not finite")
        visible = caches.slots.visible // case.geometry.tokens_per_frame
        commit_ms = timed(stage.device, lambda: stage.commit(state))
        steps = tuple(round(float(step), 3) for step in out["step_ms"])
        held = held_bytes(stage.device)
        played.append(
            Chunk(
                index,
                visible,
                round(control_ms, 3),
                steps,
                round(commit_ms, 3),
                round(latent_ms, 3),
                held,
            )
        )
    return played


def summarize(chunks: list[Chunk], case: Case, peak: float | None) -> dict[str, Any]:
    """Medians over the chunks that see as much as the last one, and the shares of `peak`."""
    visible = chunks[-1].visible_frames
    alike = [chunk for chunk in chunks if chunk.visible_frames == visible]
    tokens = CHUNK * case.geometry.tokens_per_frame
    seen = visible * case.geometry.tokens_per_frame
    config = case.config

    def median(values: list[float]) -> float:
        return round(float(np.median(values)), 3)

    # A chunk's first step includes reading its control.
    later = [ms for chunk in alike for ms in (chunk.step_ms[1:] or chunk.step_ms)]
    measured = {
        "visible_frames": visible,
        "chunks_measured": len(alike),
        "control_ms": median([chunk.control_ms for chunk in alike]),
        "step_ms": median(later),
        "commit_ms": median([chunk.commit_ms for chunk in alike]),
        "latent_ms": median([chunk.latent_ms for chunk in alike]),
    }
    operations = {
        "control": control_flops(config, tokens),
        "step": pass_flops(config, tokens, seen),
        "commit": commit_flops(config, tokens, seen),
    }
    shares = {
        name: round(count / (measured[f"{name}_ms"] / 1000) / peak, 4) if peak else None
        for name, count in operations.items()
    }
    return measured | {"tflop": {k: v / 1e12 for k, v in operations.items()}, "peak_share": shares}


def growth(chunks: list[Chunk]) -> int:
    """Bytes that were held after the last chunk and not after the first that saw a full window."""
    visible = chunks[-1].visible_frames
    full = [chunk for chunk in chunks if chunk.visible_frames == visible]
    return full[-1].held_bytes - full[0].held_bytes
