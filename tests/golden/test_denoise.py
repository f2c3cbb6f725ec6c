"""Network outputs, latents and key caches of whole sessions."""

from __future__ import annotations

import re

import numpy as np
import pytest

from lingbot_triton.options import SessionOptions

TOLERANCE = 2e-4


def _compare(golden, name, options, prompt):
    expected = golden.file(name)
    played = golden.play(options, prompt)
    np.testing.assert_allclose(played.latents, expected["latents"], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(played.last_keys, expected["kv_last_k"], rtol=0, atol=TOLERANCE)
    compared = 0
    for key, flow in expected.items():
        if found := re.fullmatch(r"flow_(\d+)_(\d+)", key):
            mine = played.flows[int(found[1])][int(found[2])]
            np.testing.assert_allclose(mine, flow, rtol=0, atol=TOLERANCE, err_msg=key)
            compared += 1
    return compared


def test_full_session(golden):
    options = SessionOptions(chunk_count=len(golden.keys))
    assert _compare(golden, "session_full", options, golden.session["prompt"]) == 12


def test_rolling_window_with_sink_frames(cam):
    options = SessionOptions(kv_window_frames=9, kv_sink_frames=3)
    assert _compare(cam, "session_window9_sink3", options, cam.session["prompt"]) == 12


def test_other_seed_shift_and_prompt(golden):
    options = SessionOptions(seed=7, shift=5.0, chunk_count=len(golden.keys))
    prompt = golden.json("text_prompts")[1]
    assert _compare(golden, "session_seed7_shift5_prompt1", options, prompt) == 0


@pytest.mark.parametrize(("name", "seed"), [("full", 42), ("seed7_shift5_prompt1", 7)])
def test_first_noise_is_exact(golden, name, seed):
    from lingbot_triton.world.schedule import Noise

    expected = golden.file(f"session_{name}")["noise_0"]
    drawn = Noise(seed, 4).draw(expected.shape, golden.denoise.device)
    np.testing.assert_array_equal(drawn[0].numpy(), expected)


def test_given_poses_are_worth_the_keys_they_come_from(cam):
    """Poses as float32, as clients send them, against the session that was driven by keys."""
    control, expected = cam.file("control"), cam.file("session_full")
    state = cam.denoise.open(
        {"context": cam.prompt.encode(cam.session["prompt"])},
        {"options": SessionOptions(chunk_count=5).to_json(), **cam.size},
    )
    for index in range(3):
        poses = control[f"poses_{index}"].astype(np.float32).astype(np.float64)
        out = cam.denoise.step(
            state,
            {"condition": cam.conditions[index], "poses": poses},
            {"chunk_index": index, "keys": ""},
        )
        cam.denoise.commit(state)
        wanted = expected["latents"][:, 3 * index : 3 * index + 3]
        np.testing.assert_allclose(out["latent"], wanted, rtol=0, atol=TOLERANCE)
