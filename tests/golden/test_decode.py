"""Frames, and that streaming them changes nothing."""

from __future__ import annotations

import numpy as np


def _decode(golden, pieces):
    state = golden.decode.open({}, {})
    return [golden.decode.step(state, {"latent": piece}, {})["frames"] for piece in pieces]


def test_frames_agree(golden):
    expected = golden.file("session_full")
    chunks = np.split(expected["latents"], len(golden.keys), axis=1)
    decoded = _decode(golden, chunks)
    assert [len(frames) for frames in decoded] == [9] + [12] * (len(chunks) - 1)
    assert all(frames.dtype == np.uint8 and frames.flags.c_contiguous for frames in decoded)
    off = np.abs(np.concatenate(decoded).astype(int) - expected["frames_u8"])
    assert off.max() <= 1
    assert (off > 0).mean() <= 1e-3


def test_frame_by_frame_is_bit_identical_to_chunk_by_chunk(act):
    latents = act.file("session_full")["latents"]
    by_chunk = _decode(act, np.split(latents, len(act.keys), axis=1))
    by_frame = _decode(act, np.split(latents, latents.shape[1], axis=1))
    assert [len(frames) for frames in by_frame] == [1] + [4] * (latents.shape[1] - 1)
    np.testing.assert_array_equal(np.concatenate(by_chunk), np.concatenate(by_frame))
