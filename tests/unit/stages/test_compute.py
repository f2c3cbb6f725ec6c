from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from lingbot_triton.settings import Settings
from lingbot_triton.stages.compute import DeviceConfig, find_device
from lingbot_triton.stages.condition import ConditionStage
from lingbot_triton.stages.decode import DecodeStage
from lingbot_triton.stages.denoise import DenoiseStage
from lingbot_triton.stages.prompt import PromptStage
from lingbot_triton.world.errors import CheckpointError
from tests.checkpoints import GOLDEN_CHECKPOINT


@pytest.mark.parametrize(("has_gpu", "found"), [(True, "cuda:0"), (False, "cpu")])
def test_auto_is_the_first_gpu_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, has_gpu: bool, found: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    assert find_device("auto") == torch.device(found)


def test_a_device_that_is_named_is_taken_whether_it_is_there_or_not() -> None:
    assert find_device("cuda:3") == torch.device("cuda:3")


def test_companions_may_lie_apart_from_the_transformer(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN_CHECKPOINT / "lingbot_world_fast", tmp_path / "dit")
    apart = Settings(checkpoint=str(tmp_path / "dit"), device="cpu")
    together = apart.replace(companions=str(GOLDEN_CHECKPOINT))
    assert DenoiseStage.load(together).network.config.num_layers == 3
    for stage in (PromptStage, ConditionStage, DecodeStage):
        stage.load(together)
        with pytest.raises(CheckpointError, match="LINGBOT_COMPANIONS names its folder"):
            stage.load(apart)


@pytest.mark.parametrize(
    ("dtype", "text_dtype"),
    [("float32", torch.float32), ("bfloat16", torch.bfloat16), ("float16", torch.bfloat16)],
)
def test_text_is_never_encoded_in_float16(dtype: str, text_dtype: torch.dtype) -> None:
    settings = Settings(checkpoint=str(GOLDEN_CHECKPOINT), device="cpu", dtype=dtype)
    assert DeviceConfig.prepare(settings).text_dtype == text_dtype
    assert next(PromptStage.load(settings).encoder.encoder.parameters()).dtype == text_dtype
