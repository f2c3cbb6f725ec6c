"""Plays a folder's session on the stages, in this process, and compares all that it holds."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lingbot_tools.regression.expectations import CHUNK, ExpectationError, Expectations, Variant
from lingbot_tools.regression.play import Stages, conditions_of
from lingbot_tools.regression.report import Report
from lingbot_triton.presets import FAST
from lingbot_triton.settings import Settings
from lingbot_triton.stages.prompt import PromptStage
from lingbot_triton.world.camera import Camera, Poses, pixel_intrinsics, relative_poses
from lingbot_triton.world.control import control, rays
from lingbot_triton.world.schedule import Noise, Schedule
from lingbot_triton.world.trajectory import at_latent_rate

RECORDED_SIZE = (832, 480)
"""Width and height that the intrinsics of recorded trajectories are given for."""

Computed = dict[str, tuple[str, NDArray[Any] | None]]
"""By a tensor's name in a file: its kind, and what was computed here; None where nothing was."""

_CPU = torch.device("cpu")


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
    variants, report.not_compared = expectations.variants()
    compare_text(report, expectations, stages.prompt)
    _compare_schedule(report, expectations)
    _compare_controls(report, expectations, kind)
    _compare_long_condition(report, expectations, stages)
    compare_sessions(report, expectations, stages, variants)
    return report


def compare_file(
    report: Report,
    expectations: Expectations,
    stem: str,
    computed: Computed,
    *,
    wanted: Collection[str] = (),
    inputs: Collection[str] = (),
) -> None:
    """Compare all that <stem>.safetensors holds but the `inputs`.

    Notes what it holds beside what was computed, and which of the tensors `wanted` it lacks.
    """
    tensors = expectations.tensors(stem)
    if tensors is None:
        report.not_compared.append(f"{stem}.safetensors")
        return
    for name in sorted({*tensors, *wanted} - set(inputs)):
        kind, value = computed.get(name, ("", None))
        if value is None or name not in tensors:
            report.not_compared.append(f"{stem}.{name}")
        else:
            report.compare(f"{stem}.{name}", kind, value, tensors[name])


def compare_sessions(
    report: Report, expectations: Expectations, stages: Stages, variants: list[Variant]
) -> None:
    """Every variant; and the first again, decoded in other pieces: the same, bit for bit."""
    conditions = conditions_of(stages.condition, expectations)
    for number, variant in enumerate(variants or [expectations.full]):
        played = stages.play(expectations, variant, conditions)
        channels, _, *size = played.latents.shape
        noises = Noise(variant.options.seed, len(FAST.step_indices))
        computed: Computed = {
            "condition": ("condition", np.concatenate(conditions, axis=1)),
            "latents": ("latents", played.latents),
            "kv_last_k": ("kv", played.last_keys),
            "noise_0": ("noise", noises.draw((channels, CHUNK, *size), _CPU)[0].numpy()),
            "frames_u8": ("frames", played.frames),
            "frames_float": ("frames_float", played.frames),
        }
        for chunk, flows in enumerate(played.flows):
            computed |= {f"flow_{chunk}_{step}": ("flow", flow) for step, flow in enumerate(flows)}
        wanted = ("latents", "frames_u8")
        compare_file(report, expectations, variant.file, computed, wanted=wanted)
        if number == 0:
            again = stages.play(expectations, variant, conditions, pieces=1)
            report.compare("repeat", "repeat", again.frames, played.frames)
            report.compare("repeat.latents", "repeat", again.latents, played.latents)


def compare_text(report: Report, expectations: Expectations, prompt: Any) -> None:
    """The embeddings of the prompts, and their token ids where the stage is in this process."""
    computed: Computed = {}
    for index, text in enumerate(expectations.json("text_prompts") or ()):
        computed[f"context_{index}"] = ("context", prompt.encode(text))
        if isinstance(prompt, PromptStage):
            computed[f"ids_{index}"] = ("ids", np.array(prompt.encoder.tokenize(text)))
    compare_file(report, expectations, "text", computed)


def _compare_schedule(report: Report, expectations: Expectations) -> None:
    schedules = expectations.json("schedule")
    if schedules is None:
        report.not_compared.append("schedule.json")
    for shift, expected in (schedules or {}).items():
        mine = Schedule.shifted(float(shift), FAST.step_indices)
        values = {"indices": FAST.step_indices, "timesteps": mine.timesteps, "sigmas": mine.sigmas}
        for name, value in values.items():
            label = f"schedule.{shift}.{name}"
            report.compare(label, "schedule", np.array(value), np.array(expected[name]))


def _compare_controls(report: Report, expectations: Expectations, kind: str) -> None:
    """Poses and controls from the session's keys, and of a recorded trajectory."""
    options, geometry = expectations.options, expectations.geometry
    intrinsics = pixel_intrinsics(options.intrinsics, options.intrinsics_size, geometry)
    directions = rays(intrinsics, geometry, _CPU)
    camera, computed = Camera(CHUNK), Computed()
    before: Poses | None = None
    for index, keys in enumerate(expectations.keys):
        poses = camera.follow_keys(keys, options)
        computed[f"poses_{index}"] = ("poses", poses)
        for name, scale in (("", options.translation_scale), ("_unscaled", 1.0)):
            relative = relative_poses(poses, before, scale)
            tensor = control(kind, relative, directions, keys)[None].numpy()
            computed[f"control_{index}{name}"] = ("control", tensor)
        before = poses[-1]
    inputs = ("offline_poses", "offline_intrinsics")
    recorded = expectations.tensors("control") or {}
    if recorded.keys() >= set(inputs):
        fx, fy, cx, cy = (float(value) for value in recorded["offline_intrinsics"][0])
        intrinsics = pixel_intrinsics((fx, fy, cx, cy), RECORDED_SIZE, geometry)
        relative = relative_poses(at_latent_rate(recorded["offline_poses"]), None, 1.0)
        tensor = control(kind, relative, rays(intrinsics, geometry, _CPU))[None].numpy()
        computed["offline_control"] = ("control", tensor)
    wanted = ("offline_control",)
    compare_file(report, expectations, "control", computed, wanted=wanted, inputs=inputs)


def _compare_long_condition(report: Report, expectations: Expectations, stages: Stages) -> None:
    """Many black frames after a picture, and from which chunk on nothing changes."""
    computed, inputs = Computed(), ("video_first",)
    if tensors := expectations.tensors("condition_long"):
        expected = tensors["latents"]
        chunks = expected.shape[1] // CHUNK
        state = stages.condition.open_scaled(torch.from_numpy(tensors["video_first"]))
        steps = [stages.condition.step(state, {}, {}) for _ in range(chunks)]
        mine = np.concatenate([step["condition"][-len(expected) :] for step in steps], axis=1)
        computed["latents"] = ("condition", mine)
        changing = (expected != expected[:, -1:]).any(axis=(0, 2, 3)).nonzero()[0]
        steady_chunk = -(-(changing.max(initial=-1) + 1) // CHUNK)
        steady = [index for index, step in enumerate(steps) if step["steady"][0]]
        if steady_chunk < chunks:
            late = float(abs(steady[0] - steady_chunk)) if steady else float("inf")
            report.add("condition_long.steady_chunk", "steady_chunk", late)
    compare_file(report, expectations, "condition_long", computed, inputs=inputs)
