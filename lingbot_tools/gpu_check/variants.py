"""The same pass computed in other ways: attention backends, compiled or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from lingbot_tools.gpu_check.cases import Case
from lingbot_tools.gpu_check.sessions import random_control
from lingbot_tools.gpu_check.timing import mean_ms
from lingbot_triton.stages.denoise import DenoiseStage
from lingbot_triton.stages.denoise_state import DenoiseState
from lingbot_triton.world.attention import SDPA, Backend, attend, choose
from lingbot_triton.world.dit import WorldTransformer
from lingbot_triton.world.errors import AttentionError
from lingbot_triton.world.family import WORLD_FAST
from lingbot_triton.world.kernels import Kernels
from lingbot_triton.world.schedule import COMMIT_TIMESTEP

CHUNK = WORLD_FAST.chunk_latent_frames

Attention = Callable[..., torch.Tensor]
_TORCH_BACKENDS = ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION")


def backends(stage: DenoiseStage) -> tuple[list[Backend], str | None]:
    """Torch's attention, and sage where it runs; else why it does not."""
    network = stage.network
    try:
        sage = choose("sage", stage.device, network.dtype, network.config.head_dim)
    except AttentionError as error:
        return [SDPA], str(error)
    return [SDPA, sage], None


@contextmanager
def computing_with(network: WorldTransformer, kernels: Kernels) -> Iterator[None]:
    """Give the network other kernels for a while."""
    modules: list[Any] = [module for module in network.modules() if hasattr(module, "kernels")]
    before = network.kernels
    try:
        for module in modules:
            module.kernels = kernels
        yield
    finally:
        for module in modules:
            module.kernels = before


@torch.inference_mode()
def measure(stage: DenoiseStage, state: DenoiseState, case: Case) -> list[dict[str, Any]]:
    """A pass and a commit of a session whose window is full, in every way there is."""
    network, control = stage.network, random_control(stage, case)
    modulation = next(iter(state.modulations.values()))
    commit = _commit(network, state, control)
    rows: list[dict[str, Any]] = []
    plain: torch.Tensor | None = None
    for backend in backends(stage)[0]:
        for kernels in (Kernels(backend), Kernels.compile(backend, case.compile_backend)):
            with computing_with(network, kernels):
                started = perf_counter()
                network.embed_control(state.caches, control)
                flow = network(state.sample, modulation, state.caches).cpu()
                first_seconds = perf_counter() - started
                plain = flow if plain is None else plain
                step = partial(network, state.sample, modulation, state.caches)
                row = {
                    "attention": backend.name,
                    "compiled": kernels.compiled,
                    "first_pass_seconds": round(first_seconds, 2),
                    "step_ms": mean_ms(step, case.repeats),
                    "commit_ms": mean_ms(commit, case.repeats),
                    "difference": _difference(flow, plain),
                }
                rows.append(row)
    return rows


def _commit(
    network: WorldTransformer, state: DenoiseState, control: torch.Tensor
) -> Callable[[], None]:
    """A commit that can be repeated: it lets go of the chunk's camera."""

    def commit() -> None:
        camera = list(state.caches.camera)
        network.commit(state.sample, state.modulations[COMMIT_TIMESTEP], state.caches)
        state.caches.camera = camera

    return commit


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

    def row(name: str, call: Attention, within: AbstractContextManager[Any]) -> dict[str, Any]:
        result: dict[str, Any] = {"attention": name, "frames": frames}
        try:
            with within:
                out = call(query, keys, values).float()
                ms = mean_ms(lambda: call(query, keys, values), case.repeats)
        except RuntimeError as error:
            return result | {"problem": str(error).splitlines()[0]}
        speed = round(tflop / (ms / 1000), 3)
        return result | {"ms": ms, "tflops": speed, "difference": _difference(out, expected)}

    rows = [row(backend.name, backend.attend, nullcontext()) for backend in backends(stage)[0]]
    if stage.device.type == "cuda":
        for name in _TORCH_BACKENDS:
            rows.append(row(f"sdpa {name}", attend, sdpa_kernel([getattr(SDPBackend, name)])))
    return rows


def _difference(mine: torch.Tensor, expected: torch.Tensor) -> float:
    return round(float((mine - expected).norm() / expected.norm()), 6)
