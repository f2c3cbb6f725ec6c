"""What is done before a model reports ready, and that it leaves nothing for later."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from lingbot_triton.errors import SessionLimit
from lingbot_triton.options import SessionOptions
from lingbot_triton.settings import Settings
from lingbot_triton.stages import warmup
from lingbot_triton.stages.condition import ConditionStage
from lingbot_triton.stages.decode import DecodeStage
from lingbot_triton.stages.denoise import DenoiseStage
from lingbot_triton.stages.prompt import PromptStage
from lingbot_triton.world.family import WORLD_FAST
from lingbot_triton.world.kernels import Kernels
from tests.checkpoints import GOLDEN_CHECKPOINT

CHUNK = WORLD_FAST.chunk_latent_frames

CPU = Settings(checkpoint=str(GOLDEN_CHECKPOINT), device="cpu")
SMALL = 16 * 64


@pytest.mark.parametrize(
    ("options", "chunks"),
    [
        (SessionOptions(chunk_count=4), 4),
        (SessionOptions(kv_window_frames=15, kv_sink_frames=3), 6),
        (SessionOptions(kv_window_frames=5, kv_sink_frames=1), 3),
    ],
)
def test_a_session_is_played_until_nothing_new_happens(denoise_stage, options, chunks):
    played = []

    class Watched:
        def open(self, arrays, parameters):
            return denoise_stage.open(arrays, parameters)

        def step(self, state, arrays, parameters):
            out = denoise_stage.step(state, arrays, parameters)
            played.append((state.geometry, state.caches.slots.visible, out["latent"].shape))
            return out

        commit, close = denoise_stage.commit, denoise_stage.close

    options = options.replace(max_area=SMALL)
    before = denoise_stage.budget.taken
    warmup.warm_denoise(Watched(), 64, options, WORLD_FAST)
    assert denoise_stage.budget.taken == before
    usual, other = warmup.geometries(SMALL)
    assert [geometry for geometry, *_ in played] == [usual] * chunks + [other]
    assert played[-2][1] == options.cache_latent_frames(CHUNK) * usual.tokens_per_frame


def test_without_memory_for_it_the_warm_up_is_cut_short(caplog):
    class Full:
        def open(self, arrays, parameters):
            raise SessionLimit("the session needs 9 MiB")

    warmup.warm_denoise(Full(), 64, SessionOptions(max_area=SMALL), WORLD_FAST)
    assert "cut short: the session needs 9 MiB" in caplog.text


def test_where_the_whole_session_does_not_fit_the_smallest_window_is_warmed(denoise_stage, caplog):
    opened = []

    class Small:
        step, commit, close = denoise_stage.step, denoise_stage.commit, denoise_stage.close

        def open(self, arrays, parameters):
            options = SessionOptions.parse(parameters["options"])
            if not options.endless:
                raise SessionLimit("the session needs 29 GiB")
            opened.append(options.cache_latent_frames(CHUNK))
            return denoise_stage.open(arrays, parameters)

    warmup.warm_denoise(Small(), 64, SessionOptions(max_area=SMALL), WORLD_FAST)
    assert opened == [6, 6]  # of two sizes
    assert "cut short: the session needs 29 GiB" in caplog.text


def test_what_fails_in_a_warm_up_fails_the_load():
    class Broken:
        def open(self, arrays, parameters):
            raise RuntimeError("no kernel image is available")

    with pytest.raises(RuntimeError, match="no kernel image"):
        warmup.warm_denoise(Broken(), 64, SessionOptions(max_area=SMALL), WORLD_FAST)


@pytest.mark.usefixtures("nothing_compiled")
def test_compiling_stages_compile_before_they_are_there_and_not_later(monkeypatch, context):
    counter = CompileCounterWithBackend("eager")
    compile_kernels = Kernels.compile
    monkeypatch.setattr(Kernels, "compile", lambda backend: compile_kernels(backend, counter))
    stage = DenoiseStage.load(CPU.replace(compile=True, max_area=SMALL, preset="window15"))
    assert stage.about["compiled"] is True
    compiled = counter.frame_count
    assert compiled == 10
    options = SessionOptions(kv_window_frames=5, kv_sink_frames=1).to_json()
    for height, width in ((16, 48), (48, 32), (32, 16)):
        state = stage.open(
            {"context": context}, {"options": options, "height": height, "width": width}
        )
        condition = np.zeros((20, 3, height // 8, width // 8), np.float32)
        for chunk in range(3):
            stage.step(state, {"condition": condition}, {"chunk_index": chunk, "keys": "w"})
            stage.commit(state)
    assert counter.frame_count == compiled


@pytest.mark.parametrize("stage", [PromptStage, ConditionStage, DecodeStage, DenoiseStage])
def test_every_stage_warms_up_where_that_is_needed(monkeypatch, stage):
    """As on a GPU; on CPUs a first call is like any other."""
    calls = []
    hook = torch.nn.modules.module.register_module_forward_pre_hook(lambda *_: calls.append(1))
    try:
        stage.load(CPU.replace(max_area=SMALL))
        assert calls == []
        monkeypatch.setattr(warmup, "needed", lambda settings: True)
        stage.load(CPU.replace(max_area=SMALL))
        assert calls
    finally:
        hook.remove()


@pytest.mark.parametrize(
    ("device", "compiles", "needed"),
    [("cpu", False, False), ("cpu", True, True), ("cuda:0", False, True)],
)
def test_where_a_warm_up_is_needed(device, compiles, needed):
    assert warmup.needed(Settings(device=device, compile=compiles)) is needed
