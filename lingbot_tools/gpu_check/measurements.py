"""Sessions timed chunk by chunk, a pass computed in several ways, the VAE; golden sessions."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from lingbot_tools.gpu_check.cases import CHUNK, Case, count_flops, mean_ms, memory_bytes, timed
from lingbot_tools.regression.expectations import Expectations
from lingbot_tools.regression.play import play as play_expected
from lingbot_triton.options import SessionOptions
from lingbot_triton.settings import Settings
from lingbot_triton.stages.denoise import DenoiseStage
from lingbot_triton.stages.denoise_state import DenoiseState
from lingbot_triton.world.attention import SDPA, Backend, attend, choose
from lingbot_triton.world.dit import WorldTransformer
from lingbot_triton.world.errors import AttentionError
from lingbot_triton.world.geometry import TEMPORAL_STRIDE
from lingbot_triton.world.kernels import Kernels
from lingbot_triton.world.schedule import COMMIT_TIMESTEP
from lingbot_triton.world.vae import Decoder, Encoder, to_uint8
from lingbot_triton.world.vae_network import VAEConfig, WanVAE

_GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden"
_CONTEXT_TOKENS = 64
_TORCH_KERNELS = ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION")

Chunk = dict[str, Any]


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
    """Play the session's next chunks, commits included; the times of each.

    `latent_ms` is what a caller of the stage waits, control to latent.
    """
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
        chunk = {
            "visible_frames": caches.slots.visible // case.geometry.tokens_per_frame,
            "control_ms": round(control_ms, 3),
            "step_ms": [round(float(step), 3) for step in out["step_ms"]],
            "commit_ms": round(timed(lambda: stage.commit(state)), 3),
            "latent_ms": round(latent_ms, 3),
            "allocated_bytes": memory_bytes(stage.device)[0],
        }
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
    return {name: count_flops(stage.device, part) for name, part in work.items()}


def summarize(
    chunks: list[Chunk], operations: dict[str, int], peak: float | None, frame_ms: float
) -> dict[str, Any]:
    """Medians over the chunks that see as much as the last one, and the shares of `peak`.

    With `frame_ms`, a latent frame's decoding, they add up to what a person waits, and to 12 frames
    with everything in line.
    """
    alike = _with_full_window(chunks)
    # A chunk's first step includes reading its control.
    times = {"step_ms": [ms for chunk in alike for ms in chunk["step_ms"][1:]]}
    for name in ("control_ms", "commit_ms", "latent_ms"):
        times[name] = [chunk[name] for chunk in alike]
    medians = {name: round(float(np.median(values)), 3) for name, values in times.items()}
    shares = {
        name: round(count / (medians[f"{name}_ms"] / 1000) / peak, 4) if peak else None
        for name, count in operations.items()
    }
    return {
        "visible_frames": chunks[-1]["visible_frames"],
        "chunks_measured": len(alike),
        **medians,
        "first_frames_ms": medians["latent_ms"] + frame_ms,
        "last_frames_ms": medians["latent_ms"] + CHUNK * frame_ms,
        "in_line_ms": medians["latent_ms"] + CHUNK * frame_ms + medians["commit_ms"],
        "peak_share": shares,
    }


def growth(chunks: list[Chunk]) -> int:
    """Bytes that the last chunk left allocated beyond the first that saw a full window."""
    alike = _with_full_window(chunks)
    return int(alike[-1]["allocated_bytes"] - alike[0]["allocated_bytes"])


def _with_full_window(chunks: list[Chunk]) -> list[Chunk]:
    return [chunk for chunk in chunks if chunk["visible_frames"] == chunks[-1]["visible_frames"]]


def backends(stage: DenoiseStage) -> tuple[list[Backend], str | None]:
    """Torch's attention, each of its kernels on a GPU, and sage where it runs; else why not."""
    network, ways = stage.network, [SDPA]
    if stage.device.type == "cuda":
        for name in _TORCH_KERNELS:
            ways.append(Backend(f"sdpa {name}", sdpa_kernel(getattr(SDPBackend, name))(attend)))
    try:
        return [*ways, choose("sage", stage.device, network.dtype, network.config.head_dim)], None
    except AttentionError as error:
        return ways, str(error)


def compute_with(network: WorldTransformer, kernels: Kernels) -> None:
    """Give the network these kernels."""
    for module in network.modules():
        if hasattr(module, "kernels"):
            setattr(module, "kernels", kernels)  # noqa: B010


@torch.inference_mode()
def measure_variants(stage: DenoiseStage, state: DenoiseState, case: Case) -> list[dict[str, Any]]:
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
            row: dict[str, Any] = {"attention": backend.name, "compiled": kernels.compiled}
            rows.append(row)
            compute_with(network, kernels)
            try:
                network.embed_control(state.caches, control)
                flow = step().cpu()
                row["step_ms"] = mean_ms(step, case.repeats)
                row["commit_ms"] = mean_ms(commit, case.repeats)
            except RuntimeError as error:  # not each of torch's kernels runs everywhere
                row["problem"] = str(error).splitlines()[0]
                continue
            plain = flow if plain is None else plain
            row["difference"] = _relative(flow, plain)
    compute_with(network, before)
    return rows


@torch.inference_mode()
def measure_vae(case: Case, device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """Milliseconds of encoding a chunk's condition, and of decoding one latent frame to uint8."""
    torch.manual_seed(0)
    with torch.device(device):
        vae = WanVAE(VAEConfig(base_dim=case.vae_width))
    vae.to(dtype).eval().requires_grad_(False)
    height, width = case.geometry.height, case.geometry.width
    encoder, decoder = Encoder(vae), Decoder(vae)
    written, shown = encoder.open(), decoder.open()
    encoder.encode_picture(written, torch.zeros(3, height, width, device=device))
    black = torch.zeros(3, TEMPORAL_STRIDE, height, width, device=device)
    latent = torch.randn(16, 1, *case.geometry.latent, device=device)

    def encode_chunk() -> None:
        for _ in range(CHUNK):
            encoder.encode(written, black)

    def decode_frame() -> None:
        to_uint8(decoder.decode(shown, latent)).cpu()

    decode_frame()  # a session's first frame is another one
    return {
        "encode_chunk_ms": mean_ms(encode_chunk, case.repeats),
        "decode_frame_ms": mean_ms(decode_frame, case.repeats),
    }


def measure_golden(kind: str, device: str, dtype: str, **settings: Any) -> dict[str, float]:
    """Play the session of a control type: how far its latents are off in the end.

    Flows are compared for its very first step: later ones start from samples that are off already.
    Raises ImportError without safetensors and ExpectationError without the golden data.
    """
    expectations = Expectations.load(_GOLDEN / kind / "expected")
    variant = expectations.full
    tensors = expectations.tensors(variant.file) or {}
    number = expectations.json("text_prompts").index(variant.prompt)
    context = (expectations.tensors("text") or {})[f"context_{number}"]
    conditions = np.split(tensors["condition"], len(expectations.keys), axis=1)
    checkpoint = str(_GOLDEN / kind / "checkpoint")
    chosen = Settings(checkpoint=checkpoint, device=device, dtype=dtype, **settings)
    stage = DenoiseStage.load(chosen)
    played = play_expected(stage, expectations, variant.options, context, conditions)
    return {
        "flow_relative": _relative(played.flows[0][0], tensors["flow_0_0"]),
        "latents_relative": _relative(played.latents, tensors["latents"]),
        "latents_max": float(np.abs(played.latents - tensors["latents"]).max()),
    }


def _relative(mine: Any, expected: Any) -> float:
    """The difference's norm relative to that of what is expected."""
    return float(np.linalg.norm(mine - expected) / np.linalg.norm(expected))
