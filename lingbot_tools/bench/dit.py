"""How long one pass of the transformer takes, and how much of it is not matrix work."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from lingbot_tools.gpu_check.cases import CHUNK, SMALL, Case, random_network, timed
from lingbot_tools.gpu_check.measurements import open_session, play, random_control
from lingbot_triton.options import SessionOptions
from lingbot_triton.stages.denoise import DenoiseStage
from lingbot_triton.world.config import TransformerConfig
from lingbot_triton.world.geometry import Geometry

MATRIX_PRODUCTS = ("aten::linear", "aten::addmm")
ATTENTION = ("aten::scaled_dot_product_attention",)
"""An operator's time includes its bias, or whatever its kernel does inside."""

MEDIUM = TransformerConfig(1024, 4096, 16, 8, "cam", text_dim=64)
CASES = (
    replace(SMALL, name="golden", geometry=Geometry(64, 96)),
    replace(SMALL, name="medium", geometry=Geometry(240, 416), config=MEDIUM),
)


def prepare(case: Case, device: torch.device, dtype: torch.dtype) -> Callable[[], Any]:
    """A pass over a session's first chunk, ready to run."""
    stage = DenoiseStage(random_network(case.config, device, dtype), device)
    state = open_session(stage, case, SessionOptions(chunk_count=1))
    play(stage, state, case, 1)
    stage.network.embed_control(state.caches, random_control(stage, case))
    modulation = next(iter(state.modulations.values()))
    return partial(stage.network, state.sample, modulation, state.caches)


@torch.inference_mode()
def measure(case: Case, device: torch.device, dtype: torch.dtype, repeats: int) -> dict[str, Any]:
    """Median milliseconds of `repeats` passes, then shares (0 to 1) of as many profiled ones."""
    one_pass = prepare(case, device, dtype)
    one_pass()
    milliseconds = statistics.median(timed(one_pass) for _ in range(repeats))
    cuda = [ProfilerActivity.CUDA] if device.type == "cuda" else []
    with profile(activities=[ProfilerActivity.CPU, *cuda]) as profiler:
        for _ in range(repeats):
            with record_function("one forward"):
                timed(one_pass)
    events = [event for event in profiler.events() or () if event.device_type.name == "CPU"]
    time = "device_time_total" if cuda else "cpu_time_total"
    total = sum(getattr(event, time) for event in events if event.name == "one forward")
    matrix, attention = (
        sum(getattr(event, time) for event in events if _outermost(event, operators)) / total
        for operators in (MATRIX_PRODUCTS, ATTENTION)
    )
    return {
        "case": case.name,
        "device": str(device),
        "dtype": str(dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "tokens": CHUNK * case.geometry.tokens_per_frame,
        "ms": round(milliseconds, 3),
        "matrix_share": round(matrix, 4),
        "attention_share": round(attention, 4),
        "other_share": round(1 - matrix - attention, 4),
    }


def _outermost(event: Any, operators: tuple[str, ...]) -> bool:
    """Whether the event is one of these operators, and not a part of another one."""
    parent = event.cpu_parent
    return event.name in operators and not (parent and parent.name in operators)


@click.command("dit")
@click.option("--device", default="cpu")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), default="float32")
@click.option("--threads", default=2, help="CPU threads")
@click.option("--repeats", default=5)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="write results here")
def command(device: str, dtype: str, threads: int, repeats: int, json_file: Path | None) -> None:
    """Time one pass of the transformer, at the golden size and at a medium one."""
    torch.set_num_threads(threads)
    results = [
        measure(case, torch.device(device), getattr(torch, dtype), repeats) for case in CASES
    ]
    for result in results:
        click.echo(
            "{case:8} {tokens:6} tokens {ms:9.2f} ms   matrix {matrix_share:6.1%}   "
            "attention {attention_share:6.1%}   other {other_share:6.1%}".format(**result)
        )
    if json_file is not None:
        json_file.write_text(json.dumps(results, indent=2) + "\n")
