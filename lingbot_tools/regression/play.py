"""Playing a folder's session, on whichever stages, and comparing what comes out."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from lingbot_tools.regression.expectations import Expectations, Tensors, Variant
from lingbot_tools.regression.report import Report, psnr, ssim
from lingbot_triton.stages import Parameters, SessionStage
from lingbot_triton.stages.load import PromptEncoder
from lingbot_triton.world.family import WORLD_FAST
from lingbot_triton.world.schedule import STEP_INDICES, Noise

CHUNK = WORLD_FAST.chunk_latent_frames


class StageSet(Protocol):
    """All four stages, of one checkpoint."""

    @property
    def prompt(self) -> PromptEncoder: ...

    @property
    def condition(self) -> SessionStage: ...

    @property
    def denoise(self) -> SessionStage: ...

    @property
    def decode(self) -> SessionStage: ...

    def last_keys(self, state: Any) -> NDArray[Any] | None:
        """Keys of a denoise state's last layer, oldest first; None where they are out of reach."""


@dataclass
class Played:
    """What a session gave: latents [16, n, h, w], flows [chunk][4, 16, 3, h, w], frames."""

    latents: NDArray[Any]
    flows: list[NDArray[Any]]
    last_keys: NDArray[Any] | None
    """The last layer's keys at the end, where the stages let one see them."""
    frames: NDArray[Any]


def conditions_of(stages: StageSet, expectations: Expectations) -> list[NDArray[Any]]:
    parameters: Parameters = {
        "options": expectations.options.to_json(),
        **size_of(expectations),
    }
    state = stages.condition.open({"picture": expectations.picture}, parameters)
    chunks = range(len(expectations.keys))
    steps = [stages.condition.step(state, {}, {"chunk_index": chunk}) for chunk in chunks]
    stages.condition.close(state)
    return [step["condition"] for step in steps]


def size_of(expectations: Expectations) -> dict[str, int]:
    geometry = expectations.geometry
    return {"height": geometry.height, "width": geometry.width}


def play(
    stages: StageSet,
    expectations: Expectations,
    conditions: list[NDArray[Any]],
    variant: Variant,
    *,
    whole_chunks: bool = False,
) -> Played:
    """One session; frames are decoded one latent frame at a time, or else chunk by chunk."""
    denoise, decode = stages.denoise, stages.decode
    parameters: Parameters = {"options": variant.options.to_json(), **size_of(expectations)}
    state = denoise.open({"context": stages.prompt.encode(variant.prompt)}, parameters)
    decoder = decode.open({}, parameters)
    latents, flows, frames = [], [], []
    for index, keys in enumerate(expectations.keys):
        step: Parameters = {"chunk_index": index, "keys": keys, "record": True}
        out = denoise.step(state, {"condition": conditions[index]}, step)
        latents.append(out["latent"])
        flows.append(out["flows"])
        pieces = 1 if whole_chunks else CHUNK
        for piece in np.split(out["latent"], pieces, axis=1):
            frames.append(decode.step(decoder, {"latent": piece}, {})["frames"])
        denoise.commit(state)
    last_keys = stages.last_keys(state)
    denoise.close(state)
    decode.close(decoder)
    return Played(np.concatenate(latents, axis=1), flows, last_keys, np.concatenate(frames))


def compare_session(
    report: Report, variant: Variant, played: Played, condition: NDArray[Any], tensors: Tensors
) -> None:
    noise_shape = (
        *played.latents.shape[:1],
        CHUNK,
        *played.latents.shape[2:],
    )
    known = {
        "condition": ("condition", condition),
        "latents": ("latents", played.latents),
    }
    if played.last_keys is not None:
        known["kv_last_k"] = ("kv", played.last_keys)
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


def compare_repeat(report: Report, first: Played, again: Played) -> None:
    """The same seed again, decoded in other pieces: every bit must be the same."""
    same = np.array_equal(first.latents, again.latents)
    same = same and np.array_equal(first.frames, again.frames)
    report.add("repeat", "repeat", 0.0 if same else 1.0)
    report.measures["repeat.identical"] = same
    report.measures["repeat.psnr"] = psnr(again.frames, first.frames)
    report.measures["repeat.ssim"] = ssim(again.frames, first.frames)


def compare_contexts(
    report: Report, encode: Callable[[str], NDArray[Any]], expectations: Expectations
) -> None:
    """The embeddings of the prompts, where the expectations have any."""
    prompts, tensors = expectations.json("text_prompts"), expectations.tensors("text")
    for index, prompt in enumerate(prompts or ()):
        expected = (tensors or {}).get(f"context_{index}")
        if expected is not None:
            report.compare(f"text.context_{index}", "context", encode(prompt), expected)
