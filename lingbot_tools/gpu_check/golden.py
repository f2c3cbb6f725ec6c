"""The small golden sessions on this device, against what the official code computed.

Needs the repository's tests/golden, and the package safetensors.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingbot_triton.options import SessionOptions
from lingbot_triton.settings import Settings
from lingbot_triton.stages.denoise import DenoiseStage
from lingbot_triton.world.family import WORLD_FAST

CHUNK = WORLD_FAST.chunk_latent_frames

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "golden"
CHECKPOINTS = {kind: FOLDER / kind / "checkpoint" for kind in ("cam", "act")}


@dataclass(frozen=True)
class Error:
    """How far a session is off: of single flows relative to their norm, of latents in the end."""

    kind: str
    dtype: str
    flow_relative: float
    latents_relative: float
    latents_max: float


def measure(kind: str, device: str, dtype: str, **settings: Any) -> Error:
    """Play the session of a control type; flows are compared for its very first step.

    Later flows start from samples that are off already. Raises ImportError without safetensors
    and OSError without the golden data.
    """
    from safetensors.numpy import load_file

    expected = FOLDER / kind / "expected"
    session = json.loads((expected / "session.json").read_text())
    tensors = load_file(expected / "session_full.safetensors")
    prompts = json.loads((expected / "text_prompts.json").read_text())
    index = prompts.index(session["prompt"])
    context = load_file(expected / "text.safetensors")[f"context_{index}"]
    checkpoint = str(CHECKPOINTS[kind])
    stage = DenoiseStage.load(
        Settings(checkpoint=checkpoint, device=device, dtype=dtype, **settings)
    )
    flow, latents = _play(stage, session, context, tensors["condition"])
    wanted = tensors["latents"]
    return Error(
        kind,
        dtype,
        _relative(flow, tensors["flow_0_0"]),
        _relative(latents, wanted),
        float(np.abs(latents - wanted).max()),
    )


def _play(
    stage: DenoiseStage, session: dict[str, Any], context: NDArray[Any], condition: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """The first flow, and the latents [16, n, h, w]."""
    keys = session["keys_per_chunk"]
    options = SessionOptions(seed=session["seed"], chunk_count=len(keys)).to_json()
    size: dict[str, Any] = {"height": session["height"], "width": session["width"]}
    state = stage.open({"context": context}, {"options": options, **size})
    flows, latents = [], []
    for index, held in enumerate(keys):
        first = index * CHUNK
        part = condition[:, first : first + CHUNK]
        parameters: dict[str, Any] = {"chunk_index": index, "keys": "".join(held), "record": True}
        out = stage.step(state, {"condition": part}, parameters)
        stage.commit(state)
        flows.append(out["flows"])
        latents.append(out["latent"])
    stage.close(state)
    return flows[0][0], np.concatenate(latents, axis=1)


def _relative(mine: NDArray[Any], expected: NDArray[Any]) -> float:
    return float(np.linalg.norm(mine - expected) / np.linalg.norm(expected))
