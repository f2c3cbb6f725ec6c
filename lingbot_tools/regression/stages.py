"""Plays a folder's session on the stages, in this process, and compares all that it holds."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from lingbot_tools.regression.compare import (
    compare_controls,
    compare_schedule,
    compare_session,
    compare_text,
)
from lingbot_tools.regression.expectations import CHUNK, ExpectationError, Expectations
from lingbot_tools.regression.play import conditions_of, play
from lingbot_tools.regression.report import Report
from lingbot_triton.settings import Settings
from lingbot_triton.stages.condition import ConditionStage
from lingbot_triton.stages.decode import DecodeStage
from lingbot_triton.stages.denoise import DenoiseStage
from lingbot_triton.stages.prompt import PromptStage


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


def play_on_stages(checkpoint: Path, expected: Path, settings: Settings | None = None) -> Report:
    """Play the session in `expected` on the stages and compare all that the folder holds.

    Raises CheckpointError or ExpectationError where one of the two cannot be used.
    """
    expectations = Expectations.load(expected)
    stages = Stages.load((settings or Settings()).replace(checkpoint=str(checkpoint)))
    kind = stages.denoise.network.config.control_type
    expected_kind = expectations.session.get("control_type", kind)
    if expected_kind != kind:
        raise ExpectationError(
            f"{expected} is of control type {expected_kind}, {checkpoint} {kind}"
        )
    report = Report("stages")
    compare_text(report, expectations, stages.prompt.encode, stages.prompt.encoder.tokenize)
    compare_schedule(report, expectations)
    compare_controls(report, expectations, kind)
    _compare_long_condition(report, stages, expectations)
    _compare_sessions(report, stages, expectations)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    report.measures["peak_memory_bytes"] = peak
    return report


def _compare_sessions(report: Report, stages: Stages, expectations: Expectations) -> None:
    """Every variant; and the first again, decoded in other pieces: the same, bit for bit."""
    conditions = conditions_of(stages.condition, expectations)
    variants, unknown = expectations.variants()
    report.not_compared += unknown
    if not variants:
        report.not_compared.append("session_*.safetensors")
    for number, variant in enumerate(variants or [expectations.full]):
        context = stages.prompt.encode(variant.prompt)
        session = stages.denoise, expectations, variant.options, context, conditions, stages.decode
        played = play(*session)
        if variants:
            compare_session(report, expectations, variant, played, conditions)
        if number == 0:
            again = play(*session, pieces=1)
            same = np.array_equal(again.latents, played.latents)
            report.compare_repeat(played.frames, again.frames, same_latents=same)


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
    report.compare("condition_long.latents", "condition", mine, expected[:, : chunks * CHUNK])
    changing = (expected != expected[:, -1:]).any(axis=(0, 2, 3)).nonzero()[0]
    first_equal = int(changing[-1]) + 1 if len(changing) else 0
    steady = [index for index, step in enumerate(steps) if step["steady"][0]]
    steady_chunk = -(-first_equal // CHUNK)
    if steady_chunk < chunks:
        late = abs(steady[0] - steady_chunk) if steady else float("inf")
        report.add("condition_long.steady_chunk", "steady_chunk", late)
