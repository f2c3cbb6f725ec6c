"""Expectations that this implementation makes itself: against later changes of its own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from lingbot_tools.regression.expectations import Expectations, Variant
from lingbot_tools.regression.play import conditions_of, play
from lingbot_tools.regression.stages import Stages
from lingbot_triton.settings import Settings

FULL = "session_full"
MADE_BY = "lingbot-triton"


def record(checkpoint: Path, expected: Path, settings: Settings) -> Path:
    """Play the session that `expected` describes and keep what came out; returns the file.

    session.json then says who made it. Raises CheckpointError or ExpectationError.
    """
    expectations = Expectations.load(expected)
    stages = Stages.load(settings.replace(checkpoint=str(checkpoint)))
    conditions = conditions_of(stages, expectations)
    variant = Variant(FULL, expectations.options, str(expectations.session["prompt"]))
    played = play(stages, expectations, conditions, variant)
    path = expected / f"{FULL}.safetensors"
    tensors = {
        "condition": np.concatenate(conditions, axis=1),
        "latents": played.latents,
        "frames_u8": played.frames,
    }
    save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, path)
    session = expectations.session | {"made_by": MADE_BY}
    (expected / "session.json").write_text(json.dumps(session, indent=1) + "\n")
    return path
