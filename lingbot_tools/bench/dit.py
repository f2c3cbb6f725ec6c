"""How long one pass of the transformer takes, and how much of it is not matrix work."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial
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


def prepare(case: Case) -> Callable[[], Any]:
    """A pass over a session's first chunk, ready to run."""
    device = torch.device("cpu")
    stage = DenoiseStage(random_network(case.config, device, torch.float32), device)
    state = open_session(stage, case, SessionOptions(chunk_count=1))
    play(stage, state, case, 1)
    stage.network.embed_control(state.caches, random_control(stage, case))
    modulation = next(iter(state.modulations.values()))
    return partial(stage.network, state.sample, modulation, state.caches)


@torch.inference_mode()
def measure(case: Case, repeats: int) -> str:
    """Median milliseconds of `repeats` passes, then shares of as many profiled ones, in a line."""
    one_pass = prepare(case)
    one_pass()
    milliseconds = statistics.median(timed(one_pass) for _ in range(repeats))
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(repeats):
            with record_function("one forward"):
                timed(one_pass)
    events = profiler.events() or ()
    total = sum(event.cpu_time_total for event in events if event.name == "one forward")
    matrix, attention = (
        sum(event.cpu_time_total for event in events if _outermost(event, operators)) / total
        for operators in (MATRIX_PRODUCTS, ATTENTION)
    )
    tokens = CHUNK * case.geometry.tokens_per_frame
    return (
        f"{case.name:8} {tokens:6} tokens {milliseconds:9.2f} ms   matrix {matrix:6.1%}   "
        f"attention {attention:6.1%}   other {1 - matrix - attention:6.1%}"
    )


def _outermost(event: Any, operators: tuple[str, ...]) -> bool:
    """Whether the event is one of these operators, and not a part of another one."""
    parent = event.cpu_parent
    return event.name in operators and not (parent and parent.name in operators)


@click.command("dit")
@click.option("--threads", default=2, help="CPU threads")
@click.option("--repeats", default=5)
def command(threads: int, repeats: int) -> None:
    """Time one pass of the transformer on a CPU, at the golden size and at a medium one."""
    torch.set_num_threads(threads)
    for case in CASES:
        click.echo(measure(case, repeats))
