"""The network on a GPU; run by hand: python -m pytest tests/gpu. Needs torch and safetensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lingbot_tools.gpu_check.cases import SMALL, random_network
from lingbot_tools.gpu_check.measurements import (
    growth,
    measure_golden,
    open_session,
    play,
    random_control,
)
from lingbot_triton.options import SessionOptions
from lingbot_triton.settings import Settings
from lingbot_triton.stages.denoise import DenoiseStage
from lingbot_triton.world.attention import attend, choose

pytestmark = pytest.mark.filterwarnings("default")  # torch's compiler warns of itself
GPU = torch.device("cuda:0")
CONDITION = np.zeros((20, 3, *SMALL.geometry.latent), np.float32)


@pytest.fixture(scope="module")
def stage() -> DenoiseStage:
    return DenoiseStage(random_network(SMALL.config, GPU, torch.bfloat16), GPU)


@pytest.mark.parametrize("kind", ["cam", "act"])
@pytest.mark.parametrize(
    ("dtype", "limit"), [("float32", 1e-4), ("bfloat16", 2e-2), ("float16", 5e-3)]
)
def test_golden_sessions_agree(kind, dtype, limit):
    error = measure_golden(kind, "cuda:0", dtype)
    assert error["flow_relative"] < limit
    assert error["latents_relative"] < limit


def test_golden_sessions_agree_when_compiled():
    assert measure_golden("cam", "cuda:0", "float32", compile=True)["latents_relative"] < 1e-4


def test_a_seed_repeats_every_bit(stage):
    def latents() -> list[np.ndarray]:
        state = open_session(stage, SMALL, SessionOptions(kv_window_frames=6))
        found = []
        for chunk in range(4):
            out = stage.step(state, {"condition": CONDITION}, {"chunk_index": chunk, "keys": "w"})
            stage.commit(state)
            found.append(out["latent"])
        stage.close(state)
        return found

    for one, again in zip(latents(), latents(), strict=True):
        np.testing.assert_array_equal(one, again)


@torch.inference_mode()
def test_a_chunk_never_waits_for_the_gpu(stage):
    state = open_session(stage, SMALL, SMALL.rolling)
    control, network = random_control(stage, SMALL), stage.network
    modulation = network.modulation(999)
    torch.cuda.set_sync_debug_mode("error")
    try:
        network.begin_chunk(state.caches)
        network.embed_control(state.caches, control)
        network(state.sample, modulation, state.caches)
        network.commit(state.sample, modulation, state.caches)
        with pytest.raises(RuntimeError):
            state.sample.sum().item()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_memory_stays_flat_and_comes_back(stage):
    options = SMALL.rolling
    before = torch.cuda.memory_allocated()
    state = open_session(stage, SMALL, options)
    held = torch.cuda.memory_allocated() - before
    assert held >= stage.kv_bytes(options, SMALL.geometry)
    assert growth(play(stage, state, SMALL, 12)) == 0
    stage.close(state)
    del state
    assert torch.cuda.memory_allocated() - before < held / 10


def test_whatever_attention_is_chosen_is_close_to_torchs():
    generator = torch.Generator(GPU).manual_seed(0)
    query, keys, values = (
        torch.randn(tokens, 4, 128, generator=generator, device=GPU, dtype=torch.bfloat16)
        for tokens in (300, 900, 900)
    )
    kept = keys.clone()
    backend = choose("auto", GPU, torch.bfloat16, 128)
    out = backend.attend(query, keys, values).float()
    expected = attend(query, keys, values).float()
    assert float((out - expected).norm() / expected.norm()) < 0.1
    assert torch.equal(keys, kept)


def test_stages_load_warm_and_on_the_gpu():
    stage = DenoiseStage.load(Settings(device="cuda:0", dtype="bfloat16"))
    assert stage.about["device"] == torch.cuda.get_device_name(GPU)
    assert stage.budget.taken == 0
