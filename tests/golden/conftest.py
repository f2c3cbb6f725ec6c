"""Expected data, and the stages' outputs of the same sessions, computed once per run."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lingbot_tools.regression.expectations import Expectations, Tensors
from lingbot_tools.regression.play import Played, conditions_of, play
from lingbot_triton.options import SessionOptions
from lingbot_triton.settings import Settings
from lingbot_triton.stages.condition import ConditionStage
from lingbot_triton.stages.decode import DecodeStage
from lingbot_triton.stages.denoise import DenoiseStage
from lingbot_triton.stages.prompt import PromptStage
from tests.checkpoints import GOLDEN_CHECKPOINT

HERE = Path(__file__).parent


class Golden:
    """One checkpoint with what the official implementation computed from it."""

    def __init__(self, checkpoint: Path, expected: Path) -> None:
        self.checkpoint = checkpoint
        self.expected = expected
        self.expectations = Expectations.load(expected)
        self.session = self.expectations.session
        self.kind = str(self.session["control_type"])
        self.keys = self.expectations.keys
        self.geometry = self.expectations.geometry
        self.size = self.expectations.size
        self.settings = Settings(checkpoint=str(checkpoint), device="cpu")
        self._files: dict[str, Tensors] = {}

    def file(self, name: str) -> Tensors:
        if name not in self._files:
            tensors = self.expectations.tensors(name)
            assert tensors is not None, f"{self.expected} has no {name}.safetensors"
            self._files[name] = tensors
        return self._files[name]

    def json(self, name: str) -> Any:
        return self.expectations.json(name)

    @cached_property
    def prompt(self) -> PromptStage:
        return PromptStage.load(self.settings)

    @cached_property
    def condition(self) -> ConditionStage:
        return ConditionStage.load(self.settings)

    @cached_property
    def denoise(self) -> DenoiseStage:
        return DenoiseStage.load(self.settings)

    @cached_property
    def decode(self) -> DecodeStage:
        return DecodeStage.load(self.settings)

    @cached_property
    def conditions(self) -> list[np.ndarray]:
        return conditions_of(self.condition, self.expectations)

    def play(self, options: SessionOptions, prompt: str) -> Played:
        context = self.prompt.encode(prompt)
        return play(self.denoise, self.expectations, options, context, self.conditions)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """The networks here are far too small to share, and idle threads would spin."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def cam() -> Golden:
    return Golden(GOLDEN_CHECKPOINT, HERE / "cam" / "expected")


@pytest.fixture(scope="session")
def act() -> Golden:
    return Golden(HERE / "act" / "checkpoint", HERE / "act" / "expected")


@pytest.fixture(scope="session", params=["cam", "act"])
def golden(request: pytest.FixtureRequest) -> Golden:
    return request.getfixturevalue(request.param)
