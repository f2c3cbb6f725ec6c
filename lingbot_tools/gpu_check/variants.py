"""The same pass computed in other ways: attention backends, compiled or not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from lingbot_tools.gpu_check.cases import CHUNK, Case
from lingbot_tools.gpu_check.sessions import random_control
from lingbot_tools.gpu_check.timing import mean_ms
from lingbot_triton.stages.denoise import DenoiseStage
from lingbot_triton.stages.denoise_state import DenoiseState
from lingbot_triton.world.attention import SDPA, Backend, attend, choose
from lingbot_triton.world.dit import WorldTransformer
from lingbot_triton.world.errors import AttentionError
from lingbot_triton.world.kernels import Kernels
from lingbot_triton.world.schedule import COMMIT_TIMESTEP

_TORCH_BACKENDS = ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION")


def backends(stage: DenoiseStage) -> tuple[list[Backend], str | None]:
    """Torch's attention, and sage where it runs; else why it does not."""
    network = stage.network
    try:
        sage = choose("sage", stage.device, network.dtype, network.config.head_dim)
    except AttentionError as error:
        return [SDPA], str(error)
    return [SDPA, sage], None


def compute_with(network: WorldTransformer, kernels: Kernels) -> None:
    """Give the network these kernels."""
    for module in network.modules():
        if hasattr(module, "kernels"):
            setattr(module, "kernels", kernels)  # noqa: B010


@torch.inference_mode()
def measure(stage: DenoiseStage, state: DenoiseState, case: Case) -> list[dict[str, Any]]:
    """A pass and a commit of a session whose window is full, in every way there is."""
    network, control, before = stage.network, random_control(stage, case), stage.network.kernels
    step = partial(network, state.sample, next(iter(state.modulations.values())), state.caches)

    def commit() -> None:
        camera = list(state.caches.camera)
        network.commit(state.sample, state.modulations[COMMIT_TIMESTEP], state.caches)
        state.caches.camera = camera  # the commit lets go of it

    rows: list[dict[str, Any]] = []
    plain: torch.Tensor | None = None
    for backend in backends(stage)[0]:
        for kernels in (Kernels(backend), Kernels.compile(backend, case.compile_backend)):
            compute_with(network, kernels)
            started = perf_counter()
            network.embed_control(state.caches, control)
            flow = step().cpu()
            first_seconds = perf_counter() - started
            plain = flow if plain is None else plain
            row = {
                "attention": backend.name,
                "compiled": kernels.compiled,
                "first_pass_seconds": round(first_seconds, 2),
                "step_ms": mean_ms(step, case.repeats),
                "commit_ms": mean_ms(commit, case.repeats),
                "difference": _difference(flow, plain),
            }
            rows.append(row)
    compute_with(network, before)
    return rows


@torch.inference_mode()
def measure_attention(stage: DenoiseStage, case: Case, frames: int) -> list[dict[str, Any]]:
    """Self attention of one layer alone, by each of torch's kernels and by sage."""
    config, tokens = case.config, case.geometry.tokens_per_frame
    heads, on = (config.num_heads, config.head_dim), (stage.device, stage.network.dtype)
    query, keys, values = (
        torch.randn(count * tokens, *heads, device=on[0], dtype=on[1])
        for count in (CHUNK, frames, frames)
    )
    expected = attend(query, keys, values).float()
    tflop = 4 * len(query) * len(keys) * config.dim / 1e12
    ways: list[tuple[str, Callable[..., torch.Tensor], AbstractContextManager[None]]] = [
        (backend.name, backend.attend, nullcontext()) for backend in backends(stage)[0]
    ]
    if stage.device.type == "cuda":
        for name in _TORCH_BACKENDS:
            ways.append((f"sdpa {name}", attend, sdpa_kernel([getattr(SDPBackend, name)])))
    rows: list[dict[str, Any]] = []
    for name, call, within in ways:
        row: dict[str, Any] = {"attention": name, "frames": frames}
        try:
            with within:
                row["difference"] = _difference(call(query, keys, values).float(), expected)
                row["ms"] = mean_ms(partial(call, query, keys, values), case.repeats)
            row["tflops"] = round(tflop / (row["ms"] / 1000), 3)
        except RuntimeError as error:
            row["problem"] = str(error).splitlines()[0]
        rows.append(row)
    return rows


def _difference(mine: torch.Tensor, expected: torch.Tensor) -> float:
    return round(float((mine - expected).norm() / expected.norm()), 6)
