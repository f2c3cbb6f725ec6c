"""How long one pass of the transformer takes, and how much of it is not matrix work."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from lingbot_tools.gpu_check.cases import random_network, timed
from lingbot_triton.world.config import TransformerConfig
from lingbot_triton.world.kv_cache import KVCache

MATRIX_PRODUCTS = ("aten::linear", "aten::addmm", "aten::mm")
ATTENTION = ("aten::scaled_dot_product_attention",)
MAX_OTHERS = 12
"""How many other operators a report lists."""

CASES = {
    "golden": (TransformerConfig(96, 192, 4, 3, "cam", text_dim=64), (3, 8, 12)),
    "medium": (TransformerConfig(1024, 4096, 16, 8, "cam", text_dim=64), (3, 30, 52)),
}
"""Networks, and the latent [16, frames, height, width] to run each on, without its channels."""

Latent = tuple[int, int, int]


@torch.inference_mode()
def prepare(
    config: TransformerConfig, latent: Latent, device: torch.device, dtype: torch.dtype
) -> Callable[[], Any]:
    """A pass over a session's first chunk, ready to run."""
    network = random_network(config, device, dtype)
    frames, height, width = latent
    grid = (frames, height // 2, width // 2)
    cache = KVCache(
        layers=config.num_layers,
        frames=frames,
        tokens_per_frame=grid[1] * grid[2],
        heads=config.num_heads,
        head_dim=config.head_dim,
        dtype=dtype,
        device=device,
    )
    caches = network.open(torch.randn(16, config.text_dim, device=device), cache, grid)
    network.begin_chunk(caches)
    control = torch.randn(config.control_width // 4, *latent, device=device)
    network.embed_control(caches, control)
    sample = torch.randn(config.in_dim, *latent, device=device)
    modulation = network.modulation(999)
    return lambda: network(sample, modulation, caches)


@torch.inference_mode()
def measure(name: str, device: torch.device, dtype: torch.dtype, repeats: int) -> dict[str, Any]:
    """Median milliseconds of `repeats` passes, then shares (0 to 1) of as many profiled ones."""
    config, latent = CASES[name]
    one_pass = prepare(config, latent, device, dtype)
    one_pass()
    milliseconds = statistics.median(timed(one_pass) for _ in range(repeats))
    cuda = [ProfilerActivity.CUDA] if device.type == "cuda" else []
    with profile(activities=[ProfilerActivity.CPU, *cuda]) as profiler:
        for _ in range(repeats):
            with record_function("one forward"):  # what no operator does is charged to this
                timed(one_pass)
    spent: dict[str, float] = defaultdict(float)
    for event in profiler.events() or ():
        if event.device_type.name == "CPU":
            own = event.self_device_time_total if cuda else event.self_cpu_time_total
            spent[_charged_to(event)] += own / 1000 / repeats
    total = sum(spent.values())
    matrix, attention = (
        sum(spent.pop(operator, 0) for operator in operators) / total
        for operators in (MATRIX_PRODUCTS, ATTENTION)
    )
    others = sorted(spent.items(), key=lambda item: item[1], reverse=True)[:MAX_OTHERS]
    return {
        "case": name,
        "device": str(device),
        "dtype": str(dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "tokens": latent[0] * latent[1] * latent[2] // 4,
        "ms": round(milliseconds, 3),
        "matrix_share": round(matrix, 4),
        "attention_share": round(attention, 4),
        "other_share": round(1 - matrix - attention, 4),
        "largest_others_ms": {operator: round(own, 3) for operator, own in others},
    }


def _charged_to(event: Any) -> str:
    """The outermost product or attention the event is part of, or else its own name.

    A product's time includes its bias, attention's whatever its kernel does inside.
    """
    name, outer = str(event.name), event
    while outer is not None:
        if outer.name in MATRIX_PRODUCTS + ATTENTION:
            name = outer.name
        outer = outer.cpu_parent
    return name


@click.command("dit")
@click.option("--device", default="cpu", show_default=True)
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), default="float32")
@click.option("--threads", default=2, show_default=True, help="CPU threads")
@click.option("--repeats", default=5, show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="write results here")
def command(device: str, dtype: str, threads: int, repeats: int, json_file: Path | None) -> None:
    """Time one pass of the transformer, at the golden size and at a medium one."""
    torch.set_num_threads(threads)
    results = [
        measure(name, torch.device(device), getattr(torch, dtype), repeats) for name in CASES
    ]
    for result in results:
        click.echo(
            "{case:8} {tokens:6} tokens {ms:9.2f} ms   matrix {matrix_share:6.1%}   "
            "attention {attention_share:6.1%}   other {other_share:6.1%}".format(**result)
        )
    if json_file is not None:
        json_file.write_text(json.dumps(results, indent=2) + "\n")
