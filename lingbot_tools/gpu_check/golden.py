"""The small golden sessions on this device, against what the official code computed.

Needs the repository's tests/golden, and the package safetensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingbot_tools.regression.expectations import Expectations
from lingbot_tools.regression.play import play
from lingbot_triton.settings import Settings
from lingbot_triton.stages.denoise import DenoiseStage

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
    and ExpectationError without the golden data.
    """
    expectations = Expectations.load(FOLDER / kind / "expected")
    variant = expectations.full
    tensors = expectations.tensors(variant.file) or {}
    number = expectations.json("text_prompts").index(variant.prompt)
    context = (expectations.tensors("text") or {})[f"context_{number}"]
    conditions = np.split(tensors["condition"], len(expectations.keys), axis=1)
    checkpoint = str(CHECKPOINTS[kind])
    stage = DenoiseStage.load(
        Settings(checkpoint=checkpoint, device=device, dtype=dtype, **settings)
    )
    played = play(stage, expectations, variant.options, context, conditions)
    expected = tensors["latents"]
    return Error(
        kind,
        dtype,
        _relative(played.flows[0][0], tensors["flow_0_0"]),
        _relative(played.latents, expected),
        float(np.abs(played.latents - expected).max()),
    )


def _relative(mine: NDArray[Any], expected: NDArray[Any]) -> float:
    return float(np.linalg.norm(mine - expected) / np.linalg.norm(expected))
