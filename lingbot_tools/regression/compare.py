"""Compares what was computed with a folder's expectations, file by file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lingbot_tools.regression.expectations import CHUNK, Expectations, Variant
from lingbot_tools.regression.play import Played
from lingbot_tools.regression.report import Report
from lingbot_triton.presets import FAST
from lingbot_triton.world.camera import Camera, Poses, pixel_intrinsics, relative_poses
from lingbot_triton.world.control import control, rays
from lingbot_triton.world.schedule import Noise, Schedule
from lingbot_triton.world.trajectory import at_latent_rate

RECORDED_SIZE = (832, 480)
"""Width and height that the intrinsics of recorded trajectories are given for."""

Computed = dict[str, tuple[str, NDArray[Any] | None]]
"""By a tensor's name in a file: its kind, and what was computed here; None where nothing was."""

_CPU = torch.device("cpu")


def compare_file(
    report: Report,
    expectations: Expectations,
    stem: str,
    computed: Mapping[str, tuple[str, NDArray[Any] | None]],
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


def compare_session(
    report: Report,
    expectations: Expectations,
    variant: Variant,
    played: Played,
    conditions: list[NDArray[Any]],
) -> None:
    channels, _, *size = played.latents.shape
    noise = Noise(variant.options.seed, len(FAST.step_indices)).draw((channels, CHUNK, *size), _CPU)
    computed: Computed = {
        "condition": ("condition", np.concatenate(conditions, axis=1)),
        "latents": ("latents", played.latents),
        "kv_last_k": ("kv", played.last_keys),
        "noise_0": ("noise", noise[0].numpy()),
        "frames_u8": ("frames", played.frames),
        "frames_float": ("frames_float", played.frames),
    }
    for chunk, flows in enumerate(played.flows):
        computed |= {f"flow_{chunk}_{step}": ("flow", flow) for step, flow in enumerate(flows)}
    wanted = ("latents", "frames_u8")
    compare_file(report, expectations, variant.file, computed, wanted=wanted)


def compare_text(
    report: Report,
    expectations: Expectations,
    encode: Callable[[str], NDArray[Any]],
    tokenize: Callable[[str], list[int]] | None = None,
) -> None:
    """The embeddings of the prompts, and their token ids where a tokenizer can be reached."""
    computed: Computed = {}
    for index, prompt in enumerate(expectations.json("text_prompts") or ()):
        computed[f"context_{index}"] = ("context", encode(prompt))
        if tokenize:
            computed[f"ids_{index}"] = ("ids", np.array(tokenize(prompt)))
    compare_file(report, expectations, "text", computed)


def compare_schedule(report: Report, expectations: Expectations) -> None:
    schedules = expectations.json("schedule")
    if schedules is None:
        report.not_compared.append("schedule.json")
    for shift, expected in (schedules or {}).items():
        mine = Schedule.shifted(float(shift), FAST.step_indices)
        values = {"indices": FAST.step_indices, "timesteps": mine.timesteps, "sigmas": mine.sigmas}
        for name, value in values.items():
            label = f"schedule.{shift}.{name}"
            report.compare(label, "schedule", np.array(value), np.array(expected[name]))


def compare_controls(report: Report, expectations: Expectations, kind: str) -> None:
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
