"""`scripts/gpu-check`: measure this machine's GPU, and check what it computes."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from lingbot_tools.gpu_check import golden, sessions, timing, vae, variants
from lingbot_tools.gpu_check.cases import FULL, SMALL, Case, random_network
from lingbot_tools.gpu_check.report import table
from lingbot_tools.gpu_check.timing import peak
from lingbot_tools.regression.expectations import ExpectationError
from lingbot_triton.stages.compute import device_name, find_device
from lingbot_triton.stages.denoise import DenoiseStage
from lingbot_triton.stages.denoise_state import DenoiseState
from lingbot_triton.world.family import WORLD_FAST

CHUNK = WORLD_FAST.chunk_latent_frames

_GOLDEN_LIMITS = {"float32": 1e-3, "bfloat16": 2e-2}
"""How far latents may be off, relative to their norm."""
_GROWTH_LIMITS = {"cuda": 0, "cpu": 32 * 2**20}
"""Bytes; a process's main memory is never quite still."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, write the JSON; 1 where a check failed, 2 where there is no GPU."""
    parser = argparse.ArgumentParser("scripts/gpu-check", description=__doc__)
    parser.add_argument("--device", default="cuda:0", help="cpu only makes sense with --small")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--small", action="store_true", help="tiny network: tests the check itself")
    parser.add_argument("--json", type=Path, default=Path("out/gpu-check.json"), metavar="FILE")
    chosen = parser.parse_args(arguments)
    device = find_device(chosen.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("torch sees no GPU here; --device cpu --small tries the check itself out")
        return 2
    if chosen.small:
        torch.set_num_threads(1)  # tensors of that size are too small to share
    report = check(SMALL if chosen.small else FULL, device, getattr(torch, chosen.dtype))
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(json.dumps(report, indent=2) + "\n")
    print(table(report))
    return 1 if report["problems"] else 0


def check(case: Case, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Everything, in one JSON object; what cannot be measured is in `left_out`."""
    started = time.monotonic()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    report: dict[str, Any] = {
        "device": device_name(device),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "case": case.name,
        "dtype": str(dtype).removeprefix("torch."),
        "height": case.geometry.height,
        "width": case.geometry.width,
        "peak_flops": peak(device_name(device)),
        "left_out": [],
        "problems": [],
        "vae": {},
    }
    _denoise(report, case, device, dtype)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    for vae_dtype in (torch.float32, torch.bfloat16):
        measured = vae.measure(case, device, vae_dtype)
        report["vae"][measured["dtype"]] = measured
    _golden(report, device)
    report["seconds"] = round(time.monotonic() - started, 1)
    return report


def _denoise(report: dict[str, Any], case: Case, device: torch.device, dtype: torch.dtype) -> None:
    network = random_network(case.config, device, dtype)
    timing.reset_peak(device)
    stage = DenoiseStage(network, device)
    rolling, full = case.rolling, case.full
    state = sessions.open_session(stage, case, rolling)
    played = sessions.play(stage, state, case, case.rolling_chunks)
    report["sessions"] = {"window15+sink3": _summary(report, stage, state, case, played)}
    grown = sessions.growth(played)
    if grown > _GROWTH_LIMITS[device.type]:
        report["problems"].append(f"memory grew by {grown} bytes in {len(played)} chunks")
    report["variants"] = variants.measure(stage, state, case)
    _host_waits(report, stage, state, case)
    stage.close(state)
    state = sessions.open_session(stage, case, full)
    ended = sessions.play(stage, state, case, full.chunk_count)
    report["sessions"]["full"] = _summary(report, stage, state, case, ended)
    stage.close(state)
    windows = [options.cache_latent_frames(CHUNK) for options in (rolling, full)]
    rows = (variants.measure_attention(stage, case, frames) for frames in windows)
    report["attention"] = [row for window in rows for row in window]
    problem = variants.backends(stage)[1]
    report["left_out"] += [] if problem is None else [problem]
    report["memory"] = {
        "weights_bytes": sum(weight.nbytes for weight in network.parameters()),
        "peak_bytes": timing.peak_bytes(device),
        "growth_bytes": grown,
        "chunks": len(played),
    }
    report["chunks"] = [asdict(chunk) for chunk in (*played, *ended)]


def _summary(
    report: dict[str, Any],
    stage: DenoiseStage,
    state: DenoiseState,
    case: Case,
    played: list[sessions.Chunk],
) -> dict[str, Any]:
    operations = sessions.operations(stage, state, case)
    return sessions.summarize(played, operations, report["peak_flops"])


@torch.inference_mode()
def _host_waits(
    report: dict[str, Any], stage: DenoiseStage, state: DenoiseState, case: Case
) -> None:
    """A chunk's passes must give the GPU work without ever waiting for it."""
    if stage.device.type != "cuda":
        report["left_out"].append("waits of the host for the GPU: there is none")
        return
    control, network = sessions.random_control(stage, case), stage.network
    modulation = next(iter(state.modulations.values()))
    torch.cuda.set_sync_debug_mode("error")
    try:
        network.begin_chunk(state.caches)
        network.embed_control(state.caches, control)
        network(state.sample, modulation, state.caches)
        network.commit(state.sample, modulation, state.caches)
    except RuntimeError as error:
        report["problems"].append(f"the host waits for the GPU within a chunk: {error}")
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _golden(report: dict[str, Any], device: torch.device) -> None:
    report["golden"] = []
    for kind in golden.CHECKPOINTS:
        for dtype, limit in _GOLDEN_LIMITS.items():
            try:
                error = golden.measure(kind, str(device), dtype)
            except (ImportError, OSError, ExpectationError) as problem:
                report["left_out"].append(f"golden {kind}: {problem}")
                continue
            report["golden"].append(asdict(error))
            if not error.latents_relative < limit:
                report["problems"].append(
                    f"golden {kind} in {dtype}: latents are off by {error.latents_relative:.2g} "
                    f"of their norm, at most {limit} is allowed"
                )


if __name__ == "__main__":
    sys.exit(main())
