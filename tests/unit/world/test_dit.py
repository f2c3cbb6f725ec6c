"""The optimised transformer against the plain one, pass by pass."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from reference_dit import ReferenceSession

from lingbot_triton.world.attention import Backend, attend
from lingbot_triton.world.config import TransformerConfig
from lingbot_triton.world.dit import WorldTransformer, dtype_of, patchify, unpatchify
from lingbot_triton.world.kernels import Kernels
from lingbot_triton.world.kv_cache import KVCache

CONFIG = TransformerConfig(
    dim=48, ffn_dim=64, num_heads=3, num_layers=2, control_type="cam", text_dim=20, text_len=7
)
LATENT = (3, 4, 6)
GRID = (3, 2, 3)
CPU = torch.device("cpu")


def random_network(
    dtype: torch.dtype = torch.float32, kernels: Kernels | None = None
) -> WorldTransformer:
    generator = torch.Generator().manual_seed(1)
    network = WorldTransformer(CONFIG, kernels).eval()
    for name, weight in network.named_parameters():
        weight.requires_grad_(False)
        weight.copy_(torch.randn(weight.shape, generator=generator) * 0.15)
        weight.data = weight.data.to(dtype_of(name, dtype))
    return network


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def open_session(
    network: WorldTransformer, frames: int, sink: int, rolling: bool, chunk_frames: int = LATENT[0]
):
    cache = KVCache(
        layers=CONFIG.num_layers,
        frames=frames,
        tokens_per_frame=GRID[1] * GRID[2],
        heads=CONFIG.num_heads,
        head_dim=CONFIG.head_dim,
        dtype=network.dtype,
        device=CPU,
        rolling=rolling,
        sink_frames=sink,
    )
    return network.open(random(5, CONFIG.text_dim, seed=2), cache, (chunk_frames, *GRID[1:]))


@torch.inference_mode()
def largest_differences(
    window: int, sink: int, rolling: bool, chunks: int, chunk_frames: int = LATENT[0]
) -> list[float]:
    """Relative to the largest value of the plain flow, over all passes of some chunks."""
    network = random_network()
    latent = (chunk_frames, *LATENT[1:])
    caches = open_session(network, window, sink, rolling, chunk_frames)
    weights = dict(network.named_parameters())
    plain = ReferenceSession(weights, CONFIG, random(5, CONFIG.text_dim, seed=2), window, sink)
    modulations = {timestep: network.modulation(timestep) for timestep in (999, 825, 0)}
    found = []
    for chunk in range(chunks):
        control = random(CONFIG.control_width // 4, *latent, seed=10 + chunk)
        network.begin_chunk(caches)
        network.embed_control(caches, control)
        for step, timestep in enumerate((999, 825)):
            sample = random(CONFIG.in_dim, *latent, seed=100 * chunk + step)
            flow = network(sample, modulations[timestep], caches)
            expected = plain.forward(sample, timestep, control)
            found.append(float((flow - expected).abs().max() / expected.abs().max()))
        clean = random(CONFIG.in_dim, *latent, seed=100 * chunk + 50)
        network.commit(clean, modulations[0], caches)
        plain.forward(clean, 0, control)
        plain.commit(chunk_frames)
        kept = torch.cat([keys for keys, _ in plain.kept[-1]])
        mine = caches.frames.ordered_keys(CONFIG.num_layers - 1)
        assert kept.shape == mine.shape
        found.append(float((mine - kept).abs().max() / kept.abs().max()))
    return found


@pytest.mark.parametrize(
    ("window", "sink", "rolling", "chunks"),
    [(9, 0, False, 3), (6, 0, True, 4), (9, 3, True, 5), (8, 1, True, 5), (5, 2, True, 4)],
)
def test_agrees_with_the_plain_network(window, sink, rolling, chunks):
    assert max(largest_differences(window, sink, rolling, chunks)) < 1e-6


@pytest.mark.parametrize("chunk_frames", [1, 2, 4])
@pytest.mark.parametrize("rolling", [False, True])
def test_agrees_with_the_plain_network_in_chunks_of_another_length(chunk_frames, rolling):
    window = 6 if rolling else 3 * chunk_frames
    assert max(largest_differences(window, 1, rolling, 3, chunk_frames)) < 1e-6


@torch.inference_mode()
def test_a_pass_repeats_bit_for_bit_and_leaves_its_input_alone():
    network = random_network()
    caches = open_session(network, 3, 0, False)
    network.begin_chunk(caches)
    network.embed_control(caches, random(CONFIG.control_width // 4, *LATENT, seed=3))
    sample = random(CONFIG.in_dim, *LATENT, seed=4)
    before, modulation = sample.clone(), network.modulation(999)
    first = network(sample, modulation, caches)
    second = network(sample, modulation, caches)
    assert torch.equal(first, second)
    assert torch.equal(sample, before)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_close_and_keeps_its_float32_islands(dtype):
    exact, rounded = random_network(), random_network(dtype)
    assert rounded.blocks[0].modulation.dtype == torch.float32
    assert rounded.time_projection[1].weight.dtype == torch.float32
    assert rounded.blocks[0].self_attn.q.weight.dtype == dtype
    flows = []
    for network in (exact, rounded):
        caches = open_session(network, 3, 0, False)
        assert caches.frames.keys[0].dtype == network.dtype
        network.begin_chunk(caches)
        network.embed_control(caches, random(CONFIG.control_width // 4, *LATENT, seed=3))
        sample = random(CONFIG.in_dim, *LATENT, seed=4)
        flows.append(network(sample, network.modulation(500), caches))
    assert flows[1].dtype == torch.float32
    difference = (flows[1] - flows[0]).abs().max() / flows[0].abs().max()
    assert 0 < difference < 0.03


@torch.inference_mode()
def test_prompt_and_time_are_computed_once():
    network = random_network()
    calls = []
    for name, module in network.named_modules():
        if name.startswith(("time_", "text_")) or name.endswith(("cross_attn.k", "cross_attn.v")):
            module.register_forward_hook(lambda *_, name=name: calls.append(name))
    caches = open_session(network, 6, 0, False)
    modulations = [network.modulation(timestep) for timestep in (999, 0)]
    assert calls
    calls.clear()
    for _ in range(2):
        network.begin_chunk(caches)
        network.embed_control(caches, random(CONFIG.control_width // 4, *LATENT, seed=3))
        network(random(CONFIG.in_dim, *LATENT, seed=4), modulations[0], caches)
        network.commit(random(CONFIG.in_dim, *LATENT, seed=5), modulations[1], caches)
    assert calls == []


@torch.inference_mode()
def test_the_camera_is_read_once_a_chunk():
    network = random_network()
    caches = open_session(network, 3, 0, False)
    network.begin_chunk(caches)
    network.embed_control(caches, random(CONFIG.control_width // 4, *LATENT, seed=3))
    used = []
    for name, module in network.named_modules():
        if "cam" in name or "c2ws" in name:
            module.register_forward_hook(lambda *_, name=name: used.append(name))
    network(random(CONFIG.in_dim, *LATENT, seed=4), network.modulation(999), caches)
    assert used == []


@torch.inference_mode()
def test_the_commit_runs_no_head_and_no_rest_of_the_last_block():
    network = random_network()
    caches = open_session(network, 3, 0, False)
    network.begin_chunk(caches)
    network.embed_control(caches, random(CONFIG.control_width // 4, *LATENT, seed=3))
    used = []
    for name, module in network.named_modules():
        module.register_forward_hook(lambda *_, name=name: used.append(name))
    network.commit(random(CONFIG.in_dim, *LATENT, seed=4), network.modulation(0), caches)
    assert "blocks.0.ffn.2" in used
    assert "blocks.1.self_attn.k" in used
    assert not [name for name in used if name.startswith(("head", "blocks.1.ffn"))]


def pass_and_commit(network, caches) -> torch.Tensor:
    """One whole chunk of a single step; its flow."""
    network.begin_chunk(caches)
    network.embed_control(caches, random(CONFIG.control_width // 4, *LATENT, seed=3))
    flow = network(random(CONFIG.in_dim, *LATENT, seed=4), network.modulation(999), caches)
    network.commit(random(CONFIG.in_dim, *LATENT, seed=5), network.modulation(0), caches)
    return flow


@torch.inference_mode()
def test_the_camera_is_held_only_while_a_chunk_is_in_work():
    network = random_network()
    caches = open_session(network, 3, 0, False)
    assert caches.camera == []
    network.begin_chunk(caches)
    network.embed_control(caches, random(CONFIG.control_width // 4, *LATENT, seed=3))
    assert [scale.shape for scale, _ in caches.camera] == [(18, 48)] * 2
    network.commit(random(CONFIG.in_dim, *LATENT, seed=5), network.modulation(0), caches)
    assert caches.camera == []


@torch.inference_mode()
def test_self_attention_goes_through_the_backend_and_the_prompts_through_torch():
    calls = []

    def counted(query, keys, values):
        calls.append(len(keys))
        return attend(query, keys, values)

    network = random_network(kernels=Kernels(Backend("counted", counted)))
    caches, plain = (open_session(network, 6, 0, False) for network in (network, random_network()))
    flow = pass_and_commit(network, caches)
    assert torch.equal(flow, pass_and_commit(random_network(), plain))
    assert calls == [18, 18, 18]  # two blocks of the pass, one of the commit
    pass_and_commit(network, caches)
    assert calls[3:] == [36, 36, 36]


@torch.inference_mode()
def test_compiled_it_computes_the_same():
    plain, compiled = random_network(), random_network(kernels=Kernels.compile(backend="eager"))
    caches = [open_session(network, 5, 1, True) for network in (plain, compiled)]
    for _ in range(3):
        flow = pass_and_commit(plain, caches[0])
        torch.testing.assert_close(pass_and_commit(compiled, caches[1]), flow)


@torch.inference_mode()
def test_a_chunk_reads_no_number_from_the_device():
    """On the meta device there are none: whatever would wait for one raises."""
    with torch.device("meta"):
        network = WorldTransformer(CONFIG).eval()
        cache = KVCache(
            layers=CONFIG.num_layers,
            frames=5,
            tokens_per_frame=GRID[1] * GRID[2],
            heads=CONFIG.num_heads,
            head_dim=CONFIG.head_dim,
            dtype=torch.float32,
            device=torch.device("meta"),
            rolling=True,
        )
        caches = network.open(torch.empty(5, CONFIG.text_dim), cache, GRID)
        for _ in range(3):
            network.begin_chunk(caches)
            network.embed_control(caches, torch.empty(CONFIG.control_width // 4, *LATENT))
            sample = torch.empty(CONFIG.in_dim, *LATENT)
            flow = network(sample, network.modulation(999), caches)
            network.commit(sample, network.modulation(0), caches)
    assert flow.shape == (16, *LATENT)
    with pytest.raises(RuntimeError, match="meta"):
        flow.sum().item()


def test_patches_keep_the_order_of_the_checkpoint():
    x = torch.arange(2 * 1 * 2 * 4.0).view(2, 1, 2, 4)
    assert patchify(x)[0].tolist() == [0, 1, 4, 5, 8, 9, 12, 13]
    patches = torch.arange(2 * 8.0).view(2, 8)
    latent = unpatchify(patches, (1, 1, 2))
    assert latent.shape == (2, 1, 2, 4)
    assert latent[1, 0].tolist() == [[1, 3, 9, 11], [5, 7, 13, 15]]


def test_config_widths():
    config = dataclasses.replace(CONFIG, control_type="act")
    assert (CONFIG.control_width, config.control_width) == (1536, 1792)
