from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lingbot_tools.tiny_world.films import CHUNK
from lingbot_tools.tiny_world.forward import Batch, Layout, predict_flow
from lingbot_tools.tiny_world.network import TINY, build_network
from lingbot_triton.world.dit import WorldTransformer
from lingbot_triton.world.kv_cache import KVCache

GRID = (CHUNK, 2, 3)
TOKENS_PER_FRAME = 6
CHUNKS = 5


@pytest.fixture(scope="module")
def network() -> WorldTransformer:
    """Random in every weight, or the zeros of a fresh one would hide mistakes."""
    shape = replace(TINY, dim=48, num_layers=3, num_heads=2, ffn_dim=64)
    network = build_network(shape, 0)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return network


def randoms(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def film(count: int, seed: int) -> tuple[torch.Tensor, ...]:
    """Clean and noisy samples, condition and control of a film's chunks."""
    return tuple(
        randoms(channels, count * CHUNK, 4, 6, seed=seed + part)
        for part, channels in enumerate((16, 16, 20, 384))
    )


@torch.inference_mode()
def streamed(network: WorldTransformer, layout: Layout, timestep: int) -> torch.Tensor:
    """The flows that sessions compute, chunk after chunk, each committed clean."""
    clean, noisy, condition, control = film(CHUNKS, seed=1)
    clean, noisy = (torch.cat((video, condition)) for video in (clean, noisy))
    caches = network.open(
        randoms(7, 64, seed=5),
        KVCache(
            layers=3,
            frames=layout.window or CHUNKS * CHUNK,
            tokens_per_frame=TOKENS_PER_FRAME,
            heads=2,
            head_dim=24,
            dtype=torch.float32,
            device=torch.device("cpu"),
            rolling=layout.window is not None,
            sink_frames=layout.sink,
        ),
        GRID,
    )
    flows = []
    for chunk in range(CHUNKS):
        part = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
        network.begin_chunk(caches)
        network.embed_control(caches, control[:, part].contiguous())
        flows.append(network(noisy[:, part].contiguous(), network.modulation(timestep), caches))
        network.commit(clean[:, part].contiguous(), network.modulation(0), caches)
    return torch.cat(flows, dim=1)


@pytest.mark.parametrize(
    ("window", "sink"), [(None, 0), (6, 0), (9, 3), (12, 3)], ids=["full", "6", "9+3", "12+3"]
)
def test_one_pass_computes_what_sessions_compute(
    network: WorldTransformer, window: int | None, sink: int
) -> None:
    layout = Layout.whole(CHUNKS, window, sink)
    clean, noisy, condition, control = (part.unsqueeze(0) for part in film(CHUNKS, seed=1))
    batch = Batch(layout, clean, condition, control, [randoms(7, 64, seed=5)])
    flow = predict_flow(network, batch, clean, noisy, torch.full((1, CHUNKS), 825))[0]
    expected = streamed(network, layout, 825)
    assert (flow - expected).abs().max() < 1e-4 * max(1.0, float(expected.abs().max()))


def test_prompts_of_different_lengths_do_not_mix(network: WorldTransformer) -> None:
    contexts = [randoms(3, 64, seed=5), randoms(9, 64, seed=6)]
    films = [torch.stack(part) for part in zip(film(1, seed=7), film(1, seed=11), strict=True)]

    def flow(chosen: slice) -> torch.Tensor:
        clean, noisy, condition, control = (part[chosen] for part in films)
        batch = Batch(Layout.whole(1), clean, condition, control, contexts[chosen])
        return predict_flow(network, batch, clean, noisy, torch.full((len(clean), 1), 700))

    both = flow(slice(0, 2))
    assert torch.allclose(both[:1], flow(slice(0, 1)), atol=1e-5)
    assert torch.allclose(both[1:], flow(slice(1, 2)), atol=1e-5)
