"""The small golden sessions on this device, against what the official code computed.

Needs the repository's tests/golden, and the package safetensors.
"""

from __future__ import annotations

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


def measure(kind: str, device: str, dtype: str, **settings: Any) -> dict[str, float]:
    """Play the session of a control type: how far its latents are off in the end.

    Flows are compared for its very first step: later ones start from samples that are off already.
    Raises ImportError without safetensors and ExpectationError without the golden data.
    """
    expectations = Expectations.load(FOLDER / kind / "expected")
    variant = expectations.full
    tensors = expectations.tensors(variant.file) or {}
    number = expectations.json("text_prompts").index(variant.prompt)
    context = (expectations.tensors("text") or {})[f"context_{number}"]
    conditions = np.split(tensors["condition"], len(expectations.keys), axis=1)
    chosen = Settings(checkpoint=str(CHECKPOINTS[kind]), device=device, dtype=dtype, **settings)
    stage = DenoiseStage.load(chosen)
    played = play(stage, expectations, variant.options, context, conditions)
    return {
        "flow_relative": _relative(played.flows[0][0], tensors["flow_0_0"]),
        "latents_relative": _relative(played.latents, tensors["latents"]),
        "latents_max": float(np.abs(played.latents - tensors["latents"]).max()),
    }


def _relative(mine: NDArray[Any], expected: NDArray[Any]) -> float:
    return float(np.linalg.norm(mine - expected) / np.linalg.norm(expected))
