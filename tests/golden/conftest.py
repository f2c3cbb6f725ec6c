"""Expected data, and the stages' answers to the same sessions, computed once per run."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file

from lingbot_triton.options import SessionOptions
from lingbot_triton.settings import Settings
from lingbot_triton.stages import Arrays
from lingbot_triton.stages.condition import ConditionStage
from lingbot_triton.stages.decode import DecodeStage
from lingbot_triton.stages.denoise import DenoiseStage
from lingbot_triton.stages.prompt import PromptStage
from lingbot_triton.world.geometry import Geometry
from tests.checkpoints import GOLDEN_CHECKPOINT

HERE = Path(__file__).parent


@dataclass
class Played:
    """A session's outputs on the denoise stage."""

    latents: np.ndarray
    flows: list[np.ndarray]
    last_keys: np.ndarray


@dataclass
class Golden:
    """One checkpoint with what the official implementation computed from it."""

    checkpoint: Path
    expected: Path
    files: dict[str, Arrays] = field(default_factory=dict)

    def file(self, name: str) -> Arrays:
        if name not in self.files:
            self.files[name] = load_file(self.expected / f"{name}.safetensors")
        return self.files[name]

    def json(self, name: str) -> Any:
        return json.loads((self.expected / f"{name}.json").read_text())

    @cached_property
    def settings(self) -> Settings:
        return Settings(checkpoint=str(self.checkpoint), device="cpu")

    @cached_property
    def session(self) -> dict[str, Any]:
        return self.json("session")

    @cached_property
    def kind(self) -> str:
        return self.session["control_type"]

    @cached_property
    def keys(self) -> list[str]:
        return ["".join(keys) for keys in self.session["keys_per_chunk"]]

    @cached_property
    def geometry(self) -> Geometry:
        return Geometry(self.session["height"], self.session["width"])

    @property
    def size(self) -> dict[str, int]:
        return {"height": self.geometry.height, "width": self.geometry.width}

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
    def picture(self) -> np.ndarray:
        return np.array(Image.open(self.expected / "image.png").convert("RGB"))

    @cached_property
    def conditions(self) -> list[np.ndarray]:
        state = self.condition.open({"picture": self.picture}, self.size)
        return [self.condition.step(state, {}, {})["condition"] for _ in self.keys]

    def play(self, options: SessionOptions, prompt: str) -> Played:
        context = self.prompt.encode(prompt)
        state = self.denoise.open({"context": context}, {"options": options.to_json(), **self.size})
        latents, flows = [], []
        for index, keys in enumerate(self.keys):
            out = self.denoise.step(
                state,
                {"condition": self.conditions[index]},
                {"chunk_index": index, "keys": keys, "record": True},
            )
            self.denoise.commit(state)
            latents.append(out["latent"])
            flows.append(out["flows"])
        last = self.denoise.network.config.num_layers - 1
        keys_held = state.caches.frames.ordered_keys(last).numpy()
        return Played(np.concatenate(latents, axis=1), flows, keys_held)


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
