"""`scripts/gpu-check`: measure this machine's GPU, and check what it computes."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from pprint import pformat
from typing import Any

import torch

from lingbot_tools.gpu_check import measurements
from lingbot_tools.gpu_check.cases import FULL, SMALL, Case, memory_bytes, peak, random_network
from lingbot_tools.regression.expectations import ExpectationError
from lingbot_triton.stages.compute import device_name, find_device
from lingbot_triton.stages.denoise import DenoiseStage

_GOLDEN_LIMITS = {"float32": 1e-3, "bfloat16": 2e-2}  # of latents, relative to their norm
_GROWTH_LIMITS = {"cuda": 0, "cpu": 32 * 2**20}  # bytes; main memory is never quite still


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the JSON, print all but its chunks; 1 where a check failed, 2 where there is no GPU."""
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
    printed = {name: content for name, content in report.items() if name != "chunks"}
    print(pformat(printed, width=160, sort_dicts=False))
    return 1 if report["problems"] else 0


def check(case: Case, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Everything, in one JSON object; what cannot be measured is in `left_out`."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    report: dict[str, Any] = {
        "device": device_name(device),
        "torch": torch.__version__,
        "case": case.name,
        "dtype": str(dtype).removeprefix("torch."),
        "peak_flops": peak(device_name(device)),
        "left_out": [],
        "problems": [],
        "vae": {
            name: measurements.measure_vae(case, device, getattr(torch, name))
            for name in ("float32", "bfloat16")
        },
        "sessions": {},
        "chunks": [],
    }
    torch.cuda.empty_cache()
    _denoise(report, case, device, dtype)
    _golden(report, device)
    return report


def _denoise(report: dict[str, Any], case: Case, device: torch.device, dtype: torch.dtype) -> None:
    stage = DenoiseStage(random_network(case.config, device, dtype), device)
    weights = sum(weight.nbytes for weight in stage.network.parameters())
    for name, options, chunks in (
        ("window15+sink3", case.rolling, case.rolling_chunks),
        ("full", case.full, case.full.chunk_count),
    ):
        state = measurements.open_session(stage, case, options)
        played = measurements.play(stage, state, case, chunks)
        operations = measurements.operations(stage, state, case)
        costs = operations, report["peak_flops"], report["vae"]["float32"]["decode_frame_ms"]
        report["sessions"][name] = measurements.summarize(played, *costs)
        report["chunks"] += played
        if options is case.rolling:
            grown = measurements.growth(played)
            report["memory"] = {"weights_bytes": weights, "growth_bytes": grown, "chunks": chunks}
            if grown > _GROWTH_LIMITS[device.type]:
                report["problems"].append(f"memory grew by {grown} bytes in {chunks} chunks")
            report["variants"] = measurements.measure_variants(stage, state, case)
        stage.close(state)
    report["memory"]["peak_bytes"] = memory_bytes(device)[1]
    if problem := measurements.backends(stage)[1]:
        report["left_out"].append(problem)


def _golden(report: dict[str, Any], device: torch.device) -> None:
    report["golden"] = []
    for kind in ("cam", "act"):
        for dtype, limit in _GOLDEN_LIMITS.items():
            try:
                error = measurements.measure_golden(kind, str(device), dtype)
            except (ImportError, OSError, ExpectationError) as problem:
                report["left_out"].append(f"golden {kind}: {problem}")
                continue
            report["golden"].append({"kind": kind, "dtype": dtype, **error})
            if not error["latents_relative"] < limit:
                report["problems"].append(
                    f"golden {kind} in {dtype}: latents are off by {error['latents_relative']:.2g} "
                    f"of their norm, at most {limit} is allowed"
                )


if __name__ == "__main__":
    sys.exit(main())
