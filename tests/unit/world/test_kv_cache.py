"""Which frames a cache holds, where, and in what order."""

from __future__ import annotations

import pytest
import torch

from lingbot_triton.world.kv_cache import KVCache

TOKENS = 2


def cache(frames: int, *, rolling: bool = False, sink: int = 0) -> KVCache:
    return KVCache(
        layers=1,
        frames=frames,
        tokens_per_frame=TOKENS,
        heads=1,
        head_dim=1,
        dtype=torch.float32,
        device=torch.device("cpu"),
        rolling=rolling,
        sink_frames=sink,
    )


def write(kv: KVCache, frames: int = 3) -> set[int]:
    """Store every token's absolute frame as its key; returns the frames that are visible."""
    slots = kv.advance(frames)
    chunk = torch.arange(frames * TOKENS).div(TOKENS, rounding_mode="floor") + slots.first_frame
    for slot, token, length in slots.segments:
        kv.keys[0][slot : slot + length, 0, 0] = chunk[token : token + length].float()
    return {int(frame) for frame in kv.keys[0][: slots.visible].flatten()}


def held(kv: KVCache) -> list[int]:
    return [int(frame) for frame in kv.ordered_keys(0).flatten()[::TOKENS]]


def test_full_cache_grows_and_then_refuses():
    kv = cache(6)
    assert write(kv) == {0, 1, 2}
    assert write(kv) == {0, 1, 2, 3, 4, 5}
    with pytest.raises(RuntimeError, match="holds 6 latent frames; frames 6 to 8"):
        kv.advance(3)
    assert held(kv) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("frames", "sink"), [(9, 3), (9, 0), (8, 1), (5, 2), (7, 3), (3, 0), (12, 6), (10, 4)]
)
def test_rolling_keeps_sink_frames_and_the_newest(frames, sink):
    kv = cache(frames, rolling=True, sink=sink)
    for chunk in range(12):
        visible = write(kv)
        seen = list(range(3 * chunk + 3))
        others = [frame for frame in seen if frame >= sink]
        wanted = seen[:sink] + others[-(frames - sink) :]
        assert visible == set(wanted)
        assert held(kv) == wanted


def test_segments_are_few_and_cover_the_chunk():
    kv = cache(8, rolling=True, sink=1)
    for _ in range(9):
        slots = kv.advance(3)
        assert len(slots.segments) <= 2
        assert sum(length for *_, length in slots.segments) == 3 * TOKENS


def test_passes_of_a_chunk_do_not_advance():
    kv = cache(9, rolling=True, sink=3)
    slots = kv.advance(3)
    assert (slots.first_frame, slots.visible, kv.seen_frames) == (0, 6, 3)
    assert kv.advance(3).first_frame == 3
