"""Playing a folder's session on the stages, in this process."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lingbot_triton.options import CHUNK_LATENT_FRAMES
from lingbot_triton.regression.controls import compare_controls
from lingbot_triton.regression.expectations import (
    ExpectationError,
    Expectations,
    Tensors,
    Variant,
)
from lingbot_triton.regression.report import Report, new_report, psnr, ssim
from lingbot_triton.settings import Settings
from lingbot_triton.stages import Parameters
from lingbot_triton.stages.condition import ConditionStage
from lingbot_triton.stages.decode import DecodeStage
from lingbot_triton.stages.denoise import DenoiseStage
from lingbot_triton.stages.prompt import PromptStage
from lingbot_triton.world.schedule import STEP_INDICES, Noise, Schedule


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


@dataclass
class Played:
    """What a session gave: latents [16, n, h, w], flows [chunk][4, 16, 3, h, w], frames."""

    latents: NDArray[Any]
    flows: list[NDArray[Any]]
    last_keys: NDArray[Any]
    frames: NDArray[Any]


def play_on_stages(checkpoint: Path, expected: Path, settings: Settings | None = None) -> Report:
    """Play the session in `expected` on the stages and compare all that the folder holds.

    Raises CheckpointError or ExpectationError where one of the two cannot be used.
    """
    expectations = Expectations.load(expected)
    stages = Stages.load(replace(settings or Settings(), checkpoint=str(checkpoint)))
    kind = stages.denoise.network.config.control_type
    wanted_kind = expectations.session.get("control_type", kind)
    if wanted_kind != kind:
        raise ExpectationError(f"{expected} is of control type {wanted_kind}, {checkpoint} {kind}")
    report = new_report(checkpoint, expected, "stages")
    _compare_text(report, stages, expectations)
    _compare_schedule(report, expectations)
    compare_controls(report, expectations, kind)
    _compare_long_condition(report, stages, expectations)

    conditions = _conditions(stages, expectations)
    variants, unknown = expectations.variants()
    report.not_compared += unknown
    if not variants:
        report.not_compared.append("session_*.safetensors")
        variants = [Variant("", expectations.options, str(expectations.session["prompt"]))]
    for variant in variants:
        played = _play(stages, expectations, conditions, variant)
        tensors = expectations.tensors(variant.file) if variant.file else None
        if tensors is not None:
            condition = np.concatenate(conditions, axis=1)
            _compare_session(report, variant, played, condition, tensors)
        if variant is variants[0]:
            again = _play(stages, expectations, conditions, variant, whole_chunks=True)
            _compare_repeat(report, played, again)
    return report.finish()


def _conditions(stages: Stages, expectations: Expectations) -> list[NDArray[Any]]:
    state = stages.condition.open({"picture": expectations.picture}, _size(expectations))
    return [stages.condition.step(state, {}, {})["condition"] for _ in expectations.keys]


def _size(expectations: Expectations) -> dict[str, int]:
    geometry = expectations.geometry
    return {"height": geometry.height, "width": geometry.width}


def _play(
    stages: Stages,
    expectations: Expectations,
    conditions: list[NDArray[Any]],
    variant: Variant,
    *,
    whole_chunks: bool = False,
) -> Played:
    """One session; frames are decoded one latent frame at a time, or else chunk by chunk."""
    denoise, decode = stages.denoise, stages.decode
    parameters: Parameters = {"options": variant.options.to_json(), **_size(expectations)}
    state = denoise.open({"context": stages.prompt.encode(variant.prompt)}, parameters)
    decoder = decode.open({}, {})
    latents, flows, frames = [], [], []
    for index, keys in enumerate(expectations.keys):
        step: Parameters = {"chunk_index": index, "keys": keys, "record": True}
        out = denoise.step(state, {"condition": conditions[index]}, step)
        latents.append(out["latent"])
        flows.append(out["flows"])
        pieces = 1 if whole_chunks else CHUNK_LATENT_FRAMES
        for piece in np.split(out["latent"], pieces, axis=1):
            frames.append(decode.step(decoder, {"latent": piece}, {})["frames"])
        denoise.commit(state)
    last = denoise.network.config.num_layers - 1
    last_keys = state.caches.frames.ordered_keys(last).float().cpu().numpy()
    denoise.close(state)
    decode.close(decoder)
    return Played(np.concatenate(latents, axis=1), flows, last_keys, np.concatenate(frames))


def _compare_session(
    report: Report, variant: Variant, played: Played, condition: NDArray[Any], tensors: Tensors
) -> None:
    noise_shape = (*played.latents.shape[:1], CHUNK_LATENT_FRAMES, *played.latents.shape[2:])
    known = {
        "condition": ("condition", condition),
        "latents": ("latents", played.latents),
        "kv_last_k": ("kv", played.last_keys),
    }
    for name, tensor in tensors.items():
        label = f"{variant.file}.{name}"
        flow = re.fullmatch(r"flow_(\d+)_(\d+)", name)
        if name in known:
            report.compare(label, known[name][0], known[name][1], tensor)
        elif flow and int(flow[1]) < len(played.flows) and int(flow[2]) < len(STEP_INDICES):
            report.compare(label, "flow", played.flows[int(flow[1])][int(flow[2])], tensor)
        elif name == "noise_0":
            drawn = Noise(variant.options.seed).draw(noise_shape, torch.device("cpu"))[0].numpy()
            report.compare(label, "noise", drawn, tensor)
        elif name == "frames_u8":
            report.compare_frames(label, played.frames, tensor)
        elif name == "frames_float":
            levels = np.clip((tensor.transpose(1, 2, 3, 0) + 1) * 127.5, 0, 255)
            nearest = np.clip(levels, played.frames, played.frames + 1.0)
            report.compare(label, "frames_float", nearest, levels)
        else:
            report.not_compared.append(label)
    lacking = {"latents", "frames_u8"} - set(tensors)
    report.not_compared += sorted(f"{variant.file}.{name}" for name in lacking)


def _compare_repeat(report: Report, first: Played, again: Played) -> None:
    """The same seed again, decoded in other pieces: every bit must be the same."""
    same = np.array_equal(first.latents, again.latents)
    same = same and np.array_equal(first.frames, again.frames)
    report.add("repeat", "repeat", 0.0 if same else 1.0)
    report.measures["repeat.identical"] = same
    report.measures["repeat.psnr"] = psnr(again.frames, first.frames)
    report.measures["repeat.ssim"] = ssim(again.frames, first.frames)


def _compare_text(report: Report, stages: Stages, expectations: Expectations) -> None:
    prompts, tensors = expectations.json("text_prompts"), expectations.tensors("text")
    if prompts is None or tensors is None:
        report.not_compared.append("text.safetensors")
        return
    for index, prompt in enumerate(prompts):
        if f"ids_{index}" in tensors:
            ids = np.array(stages.prompt.encoder.tokenize(prompt))
            report.compare(f"text.ids_{index}", "ids", ids, tensors[f"ids_{index}"])
        if f"context_{index}" in tensors:
            context = stages.prompt.encode(prompt)
            report.compare(f"text.context_{index}", "context", context, tensors[f"context_{index}"])


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
    chunks = expected.shape[1] // CHUNK_LATENT_FRAMES
    state = stages.condition.open_scaled(torch.from_numpy(tensors["video_first"]))
    steps = [stages.condition.step(state, {}, {}) for _ in range(chunks)]
    mine = np.concatenate([step["condition"][-len(expected) :] for step in steps], axis=1)
    wanted = expected[:, : chunks * CHUNK_LATENT_FRAMES]
    report.compare("condition_long.latents", "condition", mine, wanted)
    changing = (expected != expected[:, -1:]).any(axis=(0, 2, 3)).nonzero()[0]
    first_equal = int(changing[-1]) + 1 if len(changing) else 0
    steady = [index for index, step in enumerate(steps) if step["steady"][0]]
    wanted_chunk = -(-first_equal // CHUNK_LATENT_FRAMES)
    if wanted_chunk < chunks:
        late = abs(steady[0] - wanted_chunk) if steady else float("inf")
        report.add("condition_long.steady_chunk", "steady_chunk", late)
