"""Conditions of a session, and of one long enough to become steady."""

from __future__ import annotations

import numpy as np
import torch


def test_condition_agrees(golden):
    condition = np.concatenate(golden.conditions, axis=1)
    expected = golden.file("session_full")["condition"]
    assert condition.dtype == np.float32
    np.testing.assert_allclose(condition, expected, rtol=0, atol=1e-5)


def test_long_condition_becomes_steady_at_chunk_ten(cam):
    expected = cam.file("condition_long")
    stage = cam.condition
    state = stage.open_scaled(torch.from_numpy(expected["video_first"]))
    encoded = []
    hook = stage.encoder.network.register_forward_hook(lambda *_: encoded.append(1))
    steps = [stage.step(state, {}, {}) for _ in range(12)]
    hook.remove()
    latents = np.concatenate([step["condition"][4:] for step in steps], axis=1)
    np.testing.assert_allclose(latents, expected["latents"], rtol=0, atol=1e-5)
    assert [bool(step["steady"][0]) for step in steps] == [False] * 10 + [True] * 2
    np.testing.assert_array_equal(steps[10]["condition"], steps[11]["condition"])
    # Latent 30 at the latest leaves the memory as it was; nothing is encoded after that.
    assert len(encoded) <= 31
    assert state.memory.features == []


def test_steady_conditions_are_what_encoding_on_would_have_given(cam, monkeypatch):
    stage = cam.condition
    first = torch.from_numpy(cam.file("condition_long")["video_first"])

    def encode(chunks):
        state = stage.open_scaled(first)
        return np.concatenate([stage.step(state, {}, {})["condition"] for _ in range(chunks)], 1)

    stopped = encode(13)
    monkeypatch.setattr("lingbot_triton.world.vae._same_bits", lambda *_: False)
    np.testing.assert_array_equal(stopped, encode(13))
