from __future__ import annotations

import pytest
import torch

from lingbot_tools.tiny_world.batches import Layout
from lingbot_tools.tiny_world.forward import (
    forward,
    read_controls,
    read_prompts,
    rope,
    segment_tokens,
    unsegment_tokens,
)
from lingbot_tools.tiny_world.network import NetworkSize, build_network
from lingbot_triton.world.dit import WorldTransformer, patchify, unpatchify
from lingbot_triton.world.family import WORLD_FAST
from lingbot_triton.world.kv_cache import KVCache

CHUNK = WORLD_FAST.chunk_latent_frames

GRID = (CHUNK, 2, 3)
TOKENS_PER_FRAME = 6
CHUNKS = 5


@pytest.fixture(scope="module")
def network() -> WorldTransformer:
    """Random in every weight, or the zeros of a fresh one would hide mistakes."""
    network = build_network(NetworkSize(dim=48, layers=3, heads=2, ffn=64).config(), 0)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return network


def randoms(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def clip() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Clean and noisy samples with conditions, controls, and a prompt, for one film."""
    frames = CHUNKS * CHUNK
    return (
        randoms(36, frames, 4, 6, seed=1),
        randoms(36, frames, 4, 6, seed=2),
        randoms(384, frames, 4, 6, seed=3),
        randoms(7, 64, seed=4),
    )


@torch.inference_mode()
def streamed(network: WorldTransformer, layout: Layout, timestep: int) -> torch.Tensor:
    """The flows that sessions compute, chunk after chunk, each committed clean."""
    clean, noisy, control, context = clip()
    caches = network.open(
        context,
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
    clean, noisy, control, context = (part.unsqueeze(0) for part in clip())
    tokens = torch.cat(
        (
            segment_tokens(clean, CHUNK)[:, :-1],
            segment_tokens(noisy, CHUNK),
        ),
        dim=1,
    )
    camera = [
        tuple(torch.cat((part[:, :-1], part), dim=1) for part in pair)
        for pair in read_controls(network, segment_tokens(control, CHUNK))
    ]
    first = [*layout.first_frames[:-1], *layout.first_frames]
    timesteps = torch.tensor([[0] * (CHUNKS - 1) + [825] * CHUNKS])
    patches = forward(
        network,
        tokens,
        timesteps,
        camera,  # type: ignore[arg-type]
        read_prompts(network, [context[0]]),
        rope(network, first, GRID),
        layout.views(TOKENS_PER_FRAME),
        outputs=CHUNKS,
    )
    mine = unsegment_tokens(patches, GRID)[0]
    expected = streamed(network, layout, 825)
    assert (mine - expected).abs().max() < 1e-4 * max(1.0, float(expected.abs().max()))


def test_prompts_of_different_lengths_do_not_mix(network: WorldTransformer) -> None:
    short, long = randoms(3, 64, seed=5), randoms(9, 64, seed=6)
    x = randoms(2, 1, 18, 144, seed=7)
    camera = read_controls(network, randoms(2, 1, 18, 1536, seed=8))
    freqs = rope(network, [0], GRID)

    def flow(index: slice, contexts: list[torch.Tensor]) -> torch.Tensor:
        chosen = [(scale[index], shift[index]) for scale, shift in camera]
        timesteps = torch.full((len(contexts), 1), 700)
        prompts = read_prompts(network, contexts)
        return forward(
            network, x[index], timesteps, chosen, prompts, freqs, [[slice(0, 18)]], outputs=1
        )

    both = flow(slice(0, 2), [short, long])
    assert torch.allclose(both[:1], flow(slice(0, 1), [short]), atol=1e-5)
    assert torch.allclose(both[1:], flow(slice(1, 2), [long]), atol=1e-5)


def test_segments_are_the_services_patches() -> None:
    video = randoms(2, 5, 6, 4, 6, seed=12)
    segments = segment_tokens(video, 3)
    assert torch.equal(segments[1, 1], patchify(video[1, :, 3:].contiguous()))
    patches = randoms(1, 2, 18, 20, seed=13)
    assert torch.equal(unsegment_tokens(patches, GRID)[0, :, 3:], unpatchify(patches[0, 1], GRID))
