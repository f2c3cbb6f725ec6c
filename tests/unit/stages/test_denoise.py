"""The denoise stage."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lingbot_triton.errors import BadRequest
from lingbot_triton.options import SessionOptions
from lingbot_triton.presets import find_preset
from lingbot_triton.settings import Settings
from lingbot_triton.stages.denoise import DenoiseStage
from lingbot_triton.world.errors import AttentionError, InputError
from lingbot_triton.world.geometry import Geometry
from tests.checkpoints import GOLDEN_CHECKPOINT

SIZE = {"height": 16, "width": 32}


@pytest.fixture
def play(denoise_stage, condition):
    """Steps and commits the next chunks of a session; returns their latents."""

    def chunks(state, *keys: str) -> list[np.ndarray]:
        latents = []
        for held in keys:
            parameters = {"chunk_index": state.chunk_index, "keys": held}
            out = denoise_stage.step(state, {"condition": condition}, parameters)
            denoise_stage.commit(state)
            latents.append(out["latent"])
        return latents

    return chunks


def test_a_step_answers_in_plain_arrays(denoise_stage, open_denoise, condition):
    state = open_denoise()
    parameters = {"chunk_index": 0, "keys": "w"}
    out = denoise_stage.step(state, {"condition": condition}, parameters)
    assert set(out) == {"latent", "step_ms"}
    assert (out["latent"].dtype, out["latent"].shape) == (np.float32, (16, 3, 2, 4))
    assert (out["step_ms"].dtype, out["step_ms"].shape) == (np.float32, (4,))
    assert (out["step_ms"] > 0).all()
    latent = out["latent"].copy()
    denoise_stage.commit(state)
    denoise_stage.step(state, {"condition": condition}, {**parameters, "chunk_index": 1})
    np.testing.assert_array_equal(out["latent"], latent)


def test_recorded_flows_lead_to_the_latent(denoise_stage, open_denoise, condition):
    state = open_denoise()
    parameters = {"chunk_index": 0, "keys": "", "record": True}
    out = denoise_stage.step(state, {"condition": condition}, parameters)
    assert out["flows"].shape == (4, 16, 3, 2, 4)
    assert len({flow.sum() for flow in out["flows"]}) == 4


def test_a_step_before_the_commit_is_an_error(denoise_stage, open_denoise, condition):
    state = open_denoise()
    denoise_stage.step(state, {"condition": condition}, {"chunk_index": 0, "keys": ""})
    with pytest.raises(RuntimeError, match="chunk 0 is not committed"):
        denoise_stage.step(state, {"condition": condition}, {"chunk_index": 1, "keys": ""})


def test_a_chunk_out_of_turn_is_an_error(denoise_stage, open_denoise, condition):
    with pytest.raises(RuntimeError, match="step for chunk 1, but chunk 0 is next"):
        denoise_stage.step(open_denoise(), {"condition": condition}, {"chunk_index": 1, "keys": ""})


def test_a_commit_without_a_step_is_an_error(denoise_stage, open_denoise):
    with pytest.raises(RuntimeError, match="chunk 0 was not denoised"):
        denoise_stage.commit(open_denoise())


def test_the_same_seed_repeats_every_bit_and_another_does_not(open_denoise, play):
    keys = ("w", "wl", "")
    first, again, other = (play(open_denoise(seed=seed), *keys) for seed in (1, 1, 2))
    np.testing.assert_array_equal(np.stack(first), np.stack(again))
    assert all(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_one_step_takes_one_and_says_so(denoise_stage, context, condition):
    stage = DenoiseStage(denoise_stage.network, denoise_stage.device, find_preset("one-step"))
    assert (stage.about["preset"], stage.about["steps"], stage.about["lossy"]) == (
        "one-step",
        1,
        True,
    )
    state = stage.open({"context": context}, {"options": SessionOptions().to_json(), **SIZE})
    parameters = {"chunk_index": 0, "keys": "w", "record": True}
    out = stage.step(state, {"condition": condition}, parameters)
    assert out["step_ms"].shape == (1,)
    sigma = state.schedule.clean_sigmas[0]
    expected = state.noise[0].double() - sigma * torch.from_numpy(out["flows"][0]).double()
    np.testing.assert_array_equal(out["latent"], expected.float().numpy())
    stage.commit(state)
    assert len(state.noise) == 1


def test_about_says_what_computes(denoise_stage):
    assert denoise_stage.about == {
        "preset": "fast",
        "steps": 4,
        "lossy": False,
        "control_type": "cam",
        "dtype": "float32",
        "attention": "sdpa",
        "compiled": False,
        "device": "cpu",
    }


def test_the_control_counts(open_denoise, play):
    assert not np.array_equal(play(open_denoise(), "w")[0], play(open_denoise(), "l")[0])


def test_sessions_that_take_turns_do_not_meet(denoise_stage, open_denoise, play, condition):
    alone = play(open_denoise(), "w", "l")
    one, other = open_denoise(), open_denoise(seed=5)
    inputs = {"condition": condition}
    first = denoise_stage.step(one, inputs, {"chunk_index": 0, "keys": "w"})["latent"]
    denoise_stage.step(other, inputs, {"chunk_index": 0, "keys": "s"})
    denoise_stage.commit(one)
    denoise_stage.commit(other)
    np.testing.assert_array_equal(np.stack([first, *play(one, "l")]), np.stack(alone))


@pytest.mark.parametrize("poses", [np.zeros((2, 4, 4)), np.full((3, 4, 4), np.inf)])
def test_a_bad_control_leaves_the_session_as_it_was(
    denoise_stage, open_denoise, play, condition, poses
):
    expected = play(open_denoise(), "w", "d")
    state = open_denoise()
    first = play(state, "w")
    with pytest.raises(InputError):
        denoise_stage.step(
            state, {"condition": condition, "poses": poses}, {"chunk_index": 1, "keys": ""}
        )
    with pytest.raises(InputError):
        denoise_stage.step(state, {"condition": condition}, {"chunk_index": 1, "keys": "?"})
    np.testing.assert_array_equal(np.stack(first + play(state, "d")), np.stack(expected))


def test_keys_go_on_where_poses_ended(denoise_stage, open_denoise, play, condition):
    driven, led = open_denoise(), open_denoise()
    play(driven, "wl")
    poses = np.stack([np.eye(4)] * 3)
    poses[1:, 2, 3] = 0.2, 0.4
    denoise_stage.step(
        led, {"condition": condition, "poses": poses}, {"chunk_index": 0, "keys": ""}
    )
    denoise_stage.commit(led)
    play(led, "w")
    assert led.camera.pose[2, 3] == pytest.approx(0.4 + 12 * 0.05, rel=1e-4)
    assert driven.camera.pose[0, 3] > 0


def test_an_endless_session_goes_on_and_keeps_its_size(denoise_stage, open_denoise, play):
    state = open_denoise(kv_window_frames=5, kv_sink_frames=1)
    storage = state.caches.frames.keys[0].data_ptr()
    latents = play(state, *["w"] * 8)
    assert state.caches.frames.seen_frames == 24
    assert state.caches.frames.keys[0].data_ptr() == storage
    assert np.isfinite(latents[-1]).all()


def test_a_context_of_another_width_is_refused(denoise_stage):
    parameters = {"options": SessionOptions().to_json(), **SIZE}
    for shape in ((4, 32), (513, 64)):
        with pytest.raises(BadRequest, match=r"must be \[at most 512, 64\]"):
            denoise_stage.open({"context": np.zeros(shape, np.float32)}, parameters)


@pytest.mark.parametrize("options", [{}, {"kv_window_frames": 6}])
def test_kv_bytes_is_what_opening_allocates(denoise_stage, open_denoise, options):
    caches = open_denoise(**options).caches
    tensors = [*caches.frames.keys, *caches.frames.values]
    tensors += [tensor for pair in caches.prompt for tensor in pair]
    allocated = sum(tensor.untyped_storage().nbytes() for tensor in tensors)
    wanted = SessionOptions(**{"chunk_count": 3, **options})
    assert denoise_stage.kv_bytes(wanted, Geometry(16, 32)) == allocated


def test_closing_gives_the_caches_back_whoever_holds_the_state(denoise_stage, open_denoise):
    state = open_denoise()
    caches = state.caches
    assert caches.frames.keys
    denoise_stage.close(state)
    assert [caches.frames.keys, caches.frames.values, caches.prompt, caches.camera] == [[]] * 4


def test_attention_that_cannot_run_is_told_before_weights_are_read():
    settings = Settings(checkpoint=str(GOLDEN_CHECKPOINT), device="cpu", attention="sage")
    with pytest.raises(AttentionError, match="sage cannot run here: it needs a CUDA device"):
        DenoiseStage.load(settings)
    assert DenoiseStage.load(settings.replace(attention="auto")).about["attention"] == "sdpa"
