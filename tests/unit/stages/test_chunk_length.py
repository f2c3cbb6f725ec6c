"""Sessions whose chunks are not three latent frames long."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lingbot_triton.errors import SessionLimit
from lingbot_triton.options import SessionOptions
from lingbot_triton.stages.condition import ConditionStage
from lingbot_triton.stages.denoise import DenoiseStage
from lingbot_triton.world.errors import InputError
from lingbot_triton.world.family import ModelFamily
from lingbot_triton.world.geometry import Geometry

SIZE = {"height": 16, "width": 32}


@pytest.mark.parametrize("by_session", [True, False])
@pytest.mark.parametrize("frames", [2, 4])
def test_a_session_is_played_in_the_models_chunks(
    condition_stage, denoise_stage, decode_stage, picture, context, frames, by_session
):
    size = SIZE | ({"chunk_latent_frames": frames} if by_session else {})
    family = ModelFamily("another", 7 if by_session else frames)
    cpu = torch.device("cpu")
    condition = ConditionStage(condition_stage.encoder, cpu, family=family)
    denoise = DenoiseStage(denoise_stage.network, cpu, family=family)
    options = {"options": SessionOptions(chunk_count=2).to_json(), **size}
    states = (
        condition.open({"picture": picture}, size),
        denoise.open({"context": context}, options),
        decode_stage.open({}, size),
    )
    shown = []
    for chunk in range(2):
        arrays = condition.step(states[0], {}, {})
        assert arrays["condition"].shape == (20, frames, 2, 4)
        assert arrays["condition"][0].any(axis=(1, 2)).tolist() == [
            chunk == 0 and frame == 0 for frame in range(frames)
        ]
        parameters = {"chunk_index": chunk, "keys": "w"}
        latent = denoise.step(states[1], {"condition": arrays["condition"]}, parameters)["latent"]
        assert latent.shape == (16, frames, 2, 4)
        denoise.commit(states[1])
        shown.append(len(decode_stage.step(states[2], {"latent": latent}, {})["frames"]))
    assert shown == [4 * frames - 3, 4 * frames]
    poses = np.stack([np.eye(4)] * 3)
    with pytest.raises(InputError, match=rf"it must be \[{frames}, 4, 4\]"):
        denoise.step(states[1], {"poses": poses}, {"chunk_index": 2})


def test_conditions_are_the_same_in_chunks_of_any_length(condition_stage, picture):
    """Encoded frame by frame, the same latents come in chunks of any length."""
    conditions = {}
    for frames in (2, 3):
        state = condition_stage.open({"picture": picture}, SIZE | {"chunk_latent_frames": frames})
        steps = [condition_stage.step(state, {}, {})["condition"] for _ in range(6 // frames)]
        conditions[frames] = np.concatenate(steps, axis=1)
    np.testing.assert_array_equal(conditions[2], conditions[3])


def test_memory_is_charged_by_the_chunks_length(denoise_stage, context):
    network, cpu = denoise_stage.network, torch.device("cpu")
    size = Geometry(SIZE["height"], SIZE["width"])
    fits = denoise_stage.kv_bytes(SessionOptions(chunk_count=2), size, 2)
    stage = DenoiseStage(network, cpu, budget_bytes=int(fits * 1.2))
    parameters = {"options": SessionOptions(chunk_count=2).to_json(), **SIZE}
    state = stage.open({"context": context}, {**parameters, "chunk_latent_frames": 2})
    stage.close(state)
    with pytest.raises(SessionLimit):
        stage.open({"context": context}, {**parameters, "chunk_latent_frames": 40})
