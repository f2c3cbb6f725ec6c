"""Playing a folder's session on the stages, in this process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lingbot_tools.regression.controls import compare_controls
from lingbot_tools.regression.expectations import (
    ExpectationError,
    Expectations,
    Variant,
)
from lingbot_tools.regression.play import (
    compare_contexts,
    compare_repeat,
    compare_session,
    conditions_of,
    play,
)
from lingbot_tools.regression.report import Report, new_report
from lingbot_triton.settings import Settings
from lingbot_triton.stages.condition import ConditionStage
from lingbot_triton.stages.decode import DecodeStage
from lingbot_triton.stages.denoise import DenoiseStage, DenoiseState
from lingbot_triton.stages.prompt import PromptStage
from lingbot_triton.world.family import WORLD_FAST
from lingbot_triton.world.schedule import STEP_INDICES, Schedule

CHUNK = WORLD_FAST.chunk_latent_frames


@dataclass
class Stages:
    """All four, of one checkpoint."""

    prompt: PromptStage
    condition: ConditionStage
    denoise: DenoiseStage
    decode: DecodeStage

    @classmethod
    def load(cls, settings: Settings) -> Stages:
        return cls(
            PromptStage.load(settings),
            ConditionStage.load(settings),
            DenoiseStage.load(settings),
            DecodeStage.load(settings),
        )

    def last_keys(self, state: DenoiseState) -> NDArray[Any]:
        last = self.denoise.network.config.num_layers - 1
        return state.caches.frames.ordered_keys(last).float().cpu().numpy()


def play_on_stages(checkpoint: Path, expected: Path, settings: Settings | None = None) -> Report:
    """Play the session in `expected` on the stages and compare all that the folder holds.

    Raises CheckpointError or ExpectationError where one of the two cannot be used.
    """
    expectations = Expectations.load(expected)
    stages = Stages.load((settings or Settings()).replace(checkpoint=str(checkpoint)))
    kind = stages.denoise.network.config.control_type
    wanted_kind = expectations.session.get("control_type", kind)
    if wanted_kind != kind:
        raise ExpectationError(f"{expected} is of control type {wanted_kind}, {checkpoint} {kind}")
    report = new_report(checkpoint, expected, "stages")
    _compare_text(report, stages, expectations)
    _compare_schedule(report, expectations)
    compare_controls(report, expectations, kind)
    _compare_long_condition(report, stages, expectations)

    conditions = conditions_of(stages, expectations)
    variants, unknown = expectations.variants()
    report.not_compared += unknown
    if not variants:
        report.not_compared.append("session_*.safetensors")
        variants = [Variant("", expectations.options, str(expectations.session["prompt"]))]
    for variant in variants:
        played = play(stages, expectations, conditions, variant)
        tensors = expectations.tensors(variant.file) if variant.file else None
        if tensors is not None:
            condition = np.concatenate(conditions, axis=1)
            compare_session(report, variant, played, condition, tensors)
        if variant is variants[0]:
            again = play(stages, expectations, conditions, variant, whole_chunks=True)
            compare_repeat(report, played, again)
    return report.finish()


def _compare_text(report: Report, stages: Stages, expectations: Expectations) -> None:
    prompts, tensors = expectations.json("text_prompts"), expectations.tensors("text")
    if prompts is None or tensors is None:
        report.not_compared.append("text.safetensors")
        return
    for index, prompt in enumerate(prompts):
        if f"ids_{index}" in tensors:
            ids = np.array(stages.prompt.encoder.tokenize(prompt))
            report.compare(f"text.ids_{index}", "ids", ids, tensors[f"ids_{index}"])
    compare_contexts(report, stages.prompt.encode, expectations)


def _compare_schedule(report: Report, expectations: Expectations) -> None:
    schedules = expectations.json("schedule")
    if schedules is None:
        report.not_compared.append("schedule.json")
        return
    for shift, expected in schedules.items():
        mine = Schedule.shifted(float(shift))
        for name, values in (
            ("indices", STEP_INDICES),
            ("timesteps", mine.timesteps),
            ("sigmas", mine.sigmas),
        ):
            label = f"schedule.{shift}.{name}"
            report.compare(label, "schedule", np.array(values), np.array(expected[name]))


def _compare_long_condition(report: Report, stages: Stages, expectations: Expectations) -> None:
    """Many black frames after a picture, and from which chunk on nothing changes."""
    tensors = expectations.tensors("condition_long")
    if tensors is None:
        report.not_compared.append("condition_long.safetensors")
        return
    expected = tensors["latents"]
    chunks = expected.shape[1] // CHUNK
    state = stages.condition.open_scaled(torch.from_numpy(tensors["video_first"]))
    steps = [stages.condition.step(state, {}, {}) for _ in range(chunks)]
    mine = np.concatenate([step["condition"][-len(expected) :] for step in steps], axis=1)
    wanted = expected[:, : chunks * CHUNK]
    report.compare("condition_long.latents", "condition", mine, wanted)
    changing = (expected != expected[:, -1:]).any(axis=(0, 2, 3)).nonzero()[0]
    first_equal = int(changing[-1]) + 1 if len(changing) else 0
    steady = [index for index, step in enumerate(steps) if step["steady"][0]]
    wanted_chunk = -(-first_equal // CHUNK)
    if wanted_chunk < chunks:
        late = abs(steady[0] - wanted_chunk) if steady else float("inf")
        report.add("condition_long.steady_chunk", "steady_chunk", late)
