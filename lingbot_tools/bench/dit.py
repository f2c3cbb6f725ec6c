"""How long one pass of the transformer takes, and how much of it is not matrix work."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from lingbot_triton.world.config import TransformerConfig
from lingbot_triton.world.dit import Modulation, WorldTransformer, dtype_of
from lingbot_triton.world.kv_cache import KVCache
from lingbot_triton.world.layers import SessionCaches

MATRIX_PRODUCTS = ("aten::linear", "aten::addmm", "aten::mm")
ATTENTION = ("aten::scaled_dot_product_attention",)
_PASS = "one forward"
_LARGEST_SHOWN = 12


@dataclass(frozen=True)
class Case:
    """A network and a latent [16, frames, height, width] to run it on."""

    name: str
    config: TransformerConfig
    latent: tuple[int, int, int]


GOLDEN = Case("golden", TransformerConfig(96, 192, 4, 3, "cam", text_dim=64), latent=(3, 8, 12))
MEDIUM = Case(
    "medium", TransformerConfig(1024, 4096, 16, 8, "cam", text_dim=64), latent=(3, 30, 52)
)


@dataclass(frozen=True)
class Result:
    """Times of one pass in milliseconds; shares of the profiled pass, 0 to 1."""

    case: str
    device: str
    dtype: str
    threads: int
    tokens: int
    ms: float
    matrix_share: float
    attention_share: float
    other_share: float
    largest_others_ms: dict[str, float]


def random_network(
    config: TransformerConfig, device: torch.device, dtype: torch.dtype
) -> WorldTransformer:
    """A network of small random weights, the same on every call."""
    generator = torch.Generator().manual_seed(0)
    with torch.device("meta"):
        network = WorldTransformer(config).eval()
    for name, weight in list(network.named_parameters()):
        owner, _, leaf = name.rpartition(".")
        values = torch.randn(weight.shape, generator=generator) * 0.02
        values = values.to(device, dtype_of(name, dtype))
        filled = torch.nn.Parameter(values, requires_grad=False)
        setattr(network.get_submodule(owner), leaf, filled)
    return network


@torch.inference_mode()
def prepare(
    case: Case, device: torch.device, dtype: torch.dtype
) -> tuple[WorldTransformer, torch.Tensor, Modulation, SessionCaches]:
    """Network, sample, modulation and caches of a session's first chunk, ready for a pass."""
    network, config = random_network(case.config, device, dtype), case.config
    frames, height, width = case.latent
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
    control = config.control_width // 4
    network.read_control(caches, torch.randn(control, *case.latent, device=device))
    sample = torch.randn(config.in_dim, *case.latent, device=device)
    return network, sample, network.modulation(999), caches


@torch.inference_mode()
def measure(case: Case, device: torch.device, dtype: torch.dtype, repeats: int) -> Result:
    """Median time of `repeats` passes, then the shares of as many profiled ones."""
    network, sample, modulation, caches = prepare(case, device, dtype)
    cuda = device.type == "cuda"

    def one_pass() -> float:
        start = time.perf_counter()
        network(sample, modulation, caches)
        if cuda:
            torch.cuda.synchronize(device)
        return (time.perf_counter() - start) * 1000

    one_pass()
    ms = statistics.median(one_pass() for _ in range(repeats))
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities) as profiler:
        for _ in range(repeats):
            with record_function(_PASS):
                one_pass()
    spent: dict[str, float] = {}
    for event in profiler.events() or ():
        if event.device_type.name == "CPU":
            name = _charged_to(event)
            own = event.self_device_time_total if cuda else event.self_cpu_time_total
            spent[name] = spent.get(name, 0) + own / 1000 / repeats
    return _result(case, device, dtype, ms, spent)


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


def _result(
    case: Case, device: torch.device, dtype: torch.dtype, ms: float, spent: dict[str, float]
) -> Result:
    """`spent` is milliseconds by operator; Python's own share is charged to the whole pass."""
    total = sum(spent.values())
    attention = sum(spent.get(name, 0) for name in ATTENTION)
    products = sum(spent.get(name, 0) for name in MATRIX_PRODUCTS)
    others = sorted(
        ((own, name) for name, own in spent.items() if name not in MATRIX_PRODUCTS + ATTENTION),
        reverse=True,
    )
    frames, height, width = case.latent
    return Result(
        case=case.name,
        device=str(device),
        dtype=str(dtype).removeprefix("torch."),
        threads=torch.get_num_threads(),
        tokens=frames * height * width // 4,
        ms=round(ms, 3),
        matrix_share=round(products / total, 4),
        attention_share=round(attention / total, 4),
        other_share=round(1 - (products + attention) / total, 4),
        largest_others_ms={name: round(own, 3) for own, name in others[:_LARGEST_SHOWN]},
    )


@click.command("dit")
@click.option("--device", default="cpu", show_default=True)
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), default="float32")
@click.option("--threads", default=2, show_default=True, help="CPU threads")
@click.option("--repeats", default=5, show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="write results here")
def dit(device: str, dtype: str, threads: int, repeats: int, json_file: Path | None) -> None:
    """Time one pass of the transformer, at the golden size and at a medium one."""
    torch.set_num_threads(threads)
    results = [
        measure(case, torch.device(device), getattr(torch, dtype), repeats)
        for case in (GOLDEN, MEDIUM)
    ]
    for result in results:
        click.echo(
            f"{result.case:8} {result.tokens:6} tokens {result.ms:9.2f} ms   "
            f"matrix {result.matrix_share:6.1%}   attention {result.attention_share:6.1%}   "
            f"other {result.other_share:6.1%}"
        )
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n")


if __name__ == "__main__":
    dit()
