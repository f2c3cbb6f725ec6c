"""The decode stage."""

from __future__ import annotations

import numpy as np


def latent(frames: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((16, frames, 2, 4), dtype=np.float32)


def frames_of(stage, state, *pieces):
    return [stage.step(state, {"latent": piece}, {})["frames"] for piece in pieces]


def test_the_first_latent_frame_gives_one_frame_and_later_ones_four(decode_stage):
    frames = frames_of(decode_stage, decode_stage.open({}, {}), latent(2), latent(1))
    assert [part.shape for part in frames] == [(5, 16, 32, 3), (4, 16, 32, 3)]
    assert all(part.dtype == np.uint8 and part.flags.c_contiguous for part in frames)


def test_any_split_gives_the_same_bits(decode_stage):
    whole = latent(6)
    splits = ([6], [3, 3], [1, 2, 3], [1] * 6)
    decoded = []
    for split in splits:
        pieces = np.split(whole, np.cumsum(split)[:-1], axis=1)
        decoded.append(np.concatenate(frames_of(decode_stage, decode_stage.open({}, {}), *pieces)))
    assert all(np.array_equal(decoded[0], other) for other in decoded[1:])


def test_sessions_do_not_meet(decode_stage):
    alone = frames_of(decode_stage, decode_stage.open({}, {}), latent(1), latent(2, 1))
    one, other = decode_stage.open({}, {}), decode_stage.open({}, {})
    first = frames_of(decode_stage, one, latent(1))
    frames_of(decode_stage, other, latent(3, 9))
    together = first + frames_of(decode_stage, one, latent(2, 1))
    np.testing.assert_array_equal(np.concatenate(together), np.concatenate(alone))


def test_closing_drops_the_memory(decode_stage):
    state = decode_stage.open({}, {})
    frames_of(decode_stage, state, latent(1))
    decode_stage.close(state)
    assert state.features == []
