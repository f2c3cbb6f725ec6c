"""Stages are tested on the embedded checkpoint, on one thread."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lingbot_triton.options import SessionOptions
from lingbot_triton.settings import Settings
from lingbot_triton.stages.condition import ConditionStage
from lingbot_triton.stages.decode import DecodeStage
from lingbot_triton.stages.denoise import DenoiseStage
from lingbot_triton.stages.prompt import PromptStage
from tests.checkpoints import GOLDEN_CHECKPOINT

SIZE = {"height": 16, "width": 32}


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """The networks here are far too small to share, and idle threads would spin."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def prompt_stage() -> PromptStage:
    return PromptStage.load(Settings(checkpoint=str(GOLDEN_CHECKPOINT), device="cpu"))


@pytest.fixture(scope="session")
def condition_stage() -> ConditionStage:
    return ConditionStage.load(
        Settings(checkpoint=str(GOLDEN_CHECKPOINT), device="cpu", condition_cache_bytes=0)
    )


@pytest.fixture(scope="session")
def denoise_stage() -> DenoiseStage:
    return DenoiseStage.load(Settings(checkpoint=str(GOLDEN_CHECKPOINT), device="cpu"))


@pytest.fixture(scope="session")
def decode_stage() -> DecodeStage:
    return DecodeStage.load(Settings(checkpoint=str(GOLDEN_CHECKPOINT), device="cpu"))


@pytest.fixture(scope="session")
def picture() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (24, 40, 3), dtype=np.uint8)


@pytest.fixture(scope="session")
def context() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((9, 64), dtype=np.float32)


@pytest.fixture(scope="session")
def condition() -> np.ndarray:
    return np.random.default_rng(2).standard_normal((20, 3, 2, 4), dtype=np.float32)


@pytest.fixture
def open_denoise(denoise_stage, context):
    """Opens a denoise session with the given options."""

    def opened(**options):
        chosen = SessionOptions(**{"chunk_count": 3, **options})
        return denoise_stage.open({"context": context}, {"options": chosen.to_json(), **SIZE})

    return opened


@pytest.fixture
def nothing_compiled() -> None:
    """Forgets what earlier tests had compiled, which counts for a function wherever it is used."""
    torch._dynamo.reset()
