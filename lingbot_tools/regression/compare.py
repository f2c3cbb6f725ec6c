"""Compares what a session gave with what its folder expects."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lingbot_tools.regression.expectations import CHUNK, Expectations, Variant
from lingbot_tools.regression.play import Played
from lingbot_tools.regression.report import Report
from lingbot_triton.presets import FAST
from lingbot_triton.world.schedule import Noise


def compare_session(
    report: Report,
    expectations: Expectations,
    variant: Variant,
    played: Played,
    conditions: list[NDArray[Any]],
) -> None:
    """Everything that the variant's file holds; names what it holds beside that, or lacks."""
    tensors = expectations.tensors(variant.file) or {}
    channels, _, *size = played.latents.shape
    mine: dict[str, tuple[str, NDArray[Any] | None]] = {
        "condition": ("condition", np.concatenate(conditions, axis=1)),
        "latents": ("latents", played.latents),
        "kv_last_k": ("kv", played.last_keys),
        "frames_u8": ("frames", played.frames),
    }
    for name, tensor in tensors.items():
        label = f"{variant.file}.{name}"
        kind, value = mine.get(name, ("", None))
        flow = re.fullmatch(r"flow_(\d+)_(\d+)", name)
        if kind == "frames" and value is not None:
            report.compare_frames(label, value, tensor)
        elif value is not None:
            report.compare(label, kind, value, tensor)
        elif flow and int(flow[1]) < len(played.flows) and int(flow[2]) < len(FAST.step_indices):
            report.compare(label, "flow", played.flows[int(flow[1])][int(flow[2])], tensor)
        elif name == "noise_0":
            noise = Noise(variant.options.seed, len(FAST.step_indices)).draw(
                (channels, CHUNK, *size), torch.device("cpu")
            )
            report.compare(label, "noise", noise[0].numpy(), tensor)
        elif name == "frames_float":
            levels = np.clip((tensor.transpose(1, 2, 3, 0) + 1) * 127.5, 0, 255)
            nearest = np.clip(levels, played.frames, played.frames + 1.0)
            report.compare(label, "frames_float", nearest, levels)
        else:
            report.not_compared.append(label)
    lacking = {"latents", "frames_u8"} - set(tensors)
    report.not_compared += sorted(f"{variant.file}.{name}" for name in lacking)


def compare_contexts(
    report: Report, encode: Callable[[str], NDArray[Any]], expectations: Expectations
) -> None:
    """The embeddings of the prompts, where the expectations have any."""
    prompts, tensors = expectations.json("text_prompts"), expectations.tensors("text")
    for index, prompt in enumerate(prompts or ()):
        expected = (tensors or {}).get(f"context_{index}")
        if expected is not None:
            report.compare(f"text.context_{index}", "context", encode(prompt), expected)
