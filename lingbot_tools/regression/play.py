"""Plays a folder's session on stages, in this process or on a server; needs torch alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingbot_tools.regression.expectations import CHUNK, Expectations, Variant
from lingbot_triton.options import SessionOptions
from lingbot_triton.settings import Settings
from lingbot_triton.stage import STAGES
from lingbot_triton.stages import Parameters, SessionStage
from lingbot_triton.stages.denoise_state import DenoiseState
from lingbot_triton.stages.load import load_stage


@dataclass
class Played:
    """What came out of a session."""

    latents: NDArray[Any]  # [16, n, h, w]
    flows: list[NDArray[Any]]  # of every chunk, [4, 16, 3, h, w]
    last_keys: NDArray[Any] | None  # the last layer's, oldest first; None where it is on a server
    frames: NDArray[Any]  # uint8 [n, H, W, 3]; none where nothing was decoded


def conditions_of(condition: SessionStage, expectations: Expectations) -> list[NDArray[Any]]:
    """The condition of every chunk, [20, 3, h, w]."""
    parameters: Parameters = {"options": expectations.options.to_json(), **expectations.size}
    state = condition.open({"picture": expectations.picture}, parameters)
    chunks = range(len(expectations.keys))
    steps = [condition.step(state, {}, {"chunk_index": chunk}) for chunk in chunks]
    condition.close(state)
    return [step["condition"] for step in steps]


def play(
    denoise: SessionStage,
    expectations: Expectations,
    options: SessionOptions,
    context: NDArray[Any],
    conditions: list[NDArray[Any]],
    decode: SessionStage | None = None,
    pieces: int = CHUNK,
) -> Played:
    """Play the keys that `expectations` gives.

    Where there is a `decode`, each chunk's latent is decoded in that many `pieces`.
    """
    parameters: Parameters = {"options": options.to_json(), **expectations.size}
    state = denoise.open({"context": context}, parameters)
    decoder = decode.open({}, parameters) if decode else None
    latents, flows, frames = [], [], []
    for index, keys in enumerate(expectations.keys):
        step: Parameters = {"chunk_index": index, "keys": keys, "record": True}
        out = denoise.step(state, {"condition": conditions[index]}, step)
        latents.append(out["latent"])
        flows.append(out["flows"])
        if decode:
            for piece in np.split(out["latent"], pieces, axis=1):
                frames.append(decode.step(decoder, {"latent": piece}, {})["frames"])
        denoise.commit(state)
    last_keys = None
    if isinstance(state, DenoiseState):
        cache = state.caches.frames
        last_keys = cache.ordered_keys(len(cache.keys) - 1).float().cpu().numpy()
    denoise.close(state)
    if decode:
        decode.close(decoder)
    shown = np.concatenate(frames) if decode else np.empty((0, 0, 0, 3), np.uint8)
    return Played(np.concatenate(latents, axis=1), flows, last_keys, shown)


@dataclass
class Stages:
    """All four of one checkpoint: the stages' own classes, or what calls them on a server."""

    prompt: Any
    condition: Any
    denoise: Any
    decode: Any

    @classmethod
    def load(cls, settings: Settings) -> Stages:
        return cls(*(load_stage(stage, settings) for stage in STAGES))

    def play(
        self,
        expectations: Expectations,
        variant: Variant,
        conditions: list[NDArray[Any]],
        pieces: int = CHUNK,
    ) -> Played:
        context, options = self.prompt.encode(variant.prompt), variant.options
        session = self.denoise, expectations, options, context, conditions, self.decode
        return play(*session, pieces)
