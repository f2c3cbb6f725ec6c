"""Memory of sessions: promised before it is allocated, given back whatever happens."""

from __future__ import annotations

import gc
import json
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lingbot_triton.errors import SessionLimit
from lingbot_triton.options import SessionOptions
from lingbot_triton.settings import Settings
from lingbot_triton.stages import budget
from lingbot_triton.stages.budget import MemoryBudget, find_vae_session_bytes, measure, ran_out
from lingbot_triton.stages.compute import DeviceConfig
from lingbot_triton.stages.denoise import DenoiseStage
from lingbot_triton.world.geometry import Geometry
from lingbot_triton.world.memory import chunk_bytes
from lingbot_triton.world.vae import memory_bytes, skeleton
from tests.checkpoints import GOLDEN_CHECKPOINT

SIZE = {"height": 16, "width": 32}


def needed(stage: DenoiseStage, **options: int) -> int:
    geometry = Geometry(16, 32)
    extra = chunk_bytes(stage.network.config, 3, geometry, stage.network.dtype.itemsize)
    return stage.kv_bytes(SessionOptions(**options), geometry) + extra


@pytest.fixture
def stage(denoise_stage: DenoiseStage) -> DenoiseStage:
    """A stage with memory for two sessions of the default length."""
    return DenoiseStage(
        denoise_stage.network, denoise_stage.device, budget_bytes=2 * needed(denoise_stage)
    )


def start(stage: DenoiseStage, context, **options: int):
    return stage.open({"context": context}, {"options": json.dumps(options), **SIZE})


def test_a_budget_refuses_with_the_numbers_that_disagree():
    memory = MemoryBudget(10 * 2**20)
    memory.take(6 * 2**20)
    with pytest.raises(SessionLimit, match=r"needs 5\.0 MiB of memory; 4\.0 MiB of 10\.0 MiB are"):
        memory.take(5 * 2**20)
    memory.take(4 * 2**20)
    memory.give_back(6 * 2**20)
    memory.take(5 * 2**20)
    assert memory.taken == 9 * 2**20


def test_one_session_too_many_is_refused_and_a_closed_one_makes_room(stage, context):
    first, _ = start(stage, context), start(stage, context)
    with pytest.raises(SessionLimit, match="of memory"):
        start(stage, context)
    stage.close(first)
    stage.close(first)  # what is closed twice is given back once
    assert stage.budget.taken == needed(stage)
    start(stage, context)


def test_what_counts_is_what_a_session_takes(stage, context):
    with pytest.raises(SessionLimit):
        start(stage, context, chunk_count=1000)
    assert stage.budget.taken == 0
    start(stage, context, chunk_count=8)
    assert stage.budget.taken == needed(stage, chunk_count=8) > needed(stage)
    with pytest.raises(SessionLimit):
        start(stage, context)
    start(stage, context, chunk_count=1, kv_window_frames=3)


@pytest.mark.parametrize(
    "failure",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
        MemoryError(),
    ],
    ids=["GPU", "CPU", "Python"],
)
def test_an_allocation_that_fails_all_the_same_leaves_nothing(stage, context, monkeypatch, failure):
    allocated: list[weakref.ref] = []
    allocate = torch.empty

    def empty(*arguments, **options):
        if len(allocated) == 3:
            raise failure
        tensor = allocate(*arguments, **options)
        allocated.append(weakref.ref(tensor))
        return tensor

    monkeypatch.setattr(torch, "empty", empty)
    with pytest.raises(SessionLimit, match="no memory is left for the session") as caught:
        start(stage, context)
    monkeypatch.undo()
    assert caught.value.__suppress_context__
    del caught
    failure.__traceback__ = None
    gc.collect()
    assert len(allocated) == 3
    assert [reference() for reference in allocated] == [None] * 3
    assert stage.budget.taken == 0
    start(stage, context)


def test_another_error_is_no_want_of_memory(stage, context, monkeypatch):
    def fail(*arguments, **options):
        raise RuntimeError("a bug")

    monkeypatch.setattr(torch, "empty", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        start(stage, context)
    assert stage.budget.taken == 0
    assert not ran_out(RuntimeError("a bug"))


def test_without_a_limit_half_of_the_main_memory_is_taken(tmp_path: Path, monkeypatch):
    (tmp_path / "meminfo").write_text("MemTotal:  9000 kB\nMemAvailable:    4000 kB\n")
    monkeypatch.setattr(budget, "MEMINFO", tmp_path / "meminfo")
    assert measure(torch.device("cpu")) == 2000 * 1024


def test_on_a_measured_gpu_the_vaes_memory_counts_too(denoise_stage, context):
    settings = Settings(checkpoint=str(GOLDEN_CHECKPOINT), device="cpu", vae_dtype="bfloat16")
    compute = DeviceConfig.prepare(settings)
    assert find_vae_session_bytes(compute, 0) is None  # much of the main memory is left anyhow
    compute = replace(compute, device=torch.device("cuda"))
    assert find_vae_session_bytes(compute, 2**30) is None
    besides = find_vae_session_bytes(compute, 0)
    vae, _, _ = skeleton(GOLDEN_CHECKPOINT)
    assert besides is not None
    assert besides(16, 32) == sum(memory_bytes(vae, 16, 32, 2)) > 0

    alone = needed(denoise_stage)
    network, device = denoise_stage.network, denoise_stage.device
    stage = DenoiseStage(network, device, budget_bytes=2 * alone, vae_session_bytes=besides)
    state = start(stage, context)
    assert stage.budget.taken == alone + besides(16, 32)
    with pytest.raises(SessionLimit):
        start(stage, context)
    stage.close(state)
    assert stage.budget.taken == 0
