"""Sessions with the same picture share their conditions, to the bit and within bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingbot_triton.settings import Settings
from lingbot_triton.stages import Arrays
from lingbot_triton.stages.condition import ConditionStage
from lingbot_triton.stages.condition_cache import ConditionCache, condition_key
from lingbot_triton.world.geometry import Geometry
from tests.checkpoints import GOLDEN_CHECKPOINT

SIZE = {"height": 32, "width": 32}


def outputs(number: int, size: int = 10) -> Arrays:
    return {"condition": np.full(size, number, np.uint8)}


def test_pictures_and_sizes_have_keys_of_their_own() -> None:
    picture = np.zeros((4, 6, 3), np.uint8)
    keys = {
        condition_key(picture, Geometry(32, 48), 3),
        condition_key(picture, Geometry(48, 32), 3),
        condition_key(picture.reshape(6, 4, 3), Geometry(32, 48), 3),
        condition_key(picture + 1, Geometry(32, 48), 3),
        condition_key(picture, Geometry(32, 48), 4),
    }
    assert len(keys) == 5
    assert condition_key(picture.copy(), Geometry(32, 48), 3) in keys


def test_the_least_recently_used_picture_goes_first() -> None:
    cache = ConditionCache(limit=30)
    for chunk in range(2):
        cache.add(b"a", chunk, outputs(chunk))
    cache.add(b"b", 0, outputs(7))
    assert cache.get(b"a", 1) is not None
    cache.add(b"c", 0, outputs(8))
    assert (cache.get(b"b", 0), cache.bytes) == (None, 30)
    cache.add(b"d", 0, outputs(9, size=31))
    assert (cache.get(b"d", 0), cache.bytes) == (None, 30)


def test_chunks_are_held_without_a_gap_and_once() -> None:
    cache = ConditionCache(limit=100)
    cache.add(b"a", 1, outputs(1))
    assert cache.bytes == 0
    cache.add(b"a", 0, outputs(0))
    cache.add(b"a", 0, outputs(5))
    held = cache.get(b"a", 0)
    assert held is not None
    assert held["condition"][0] == 0
    with pytest.raises(ValueError, match="read-only"):
        held["condition"][0] = 1


@pytest.fixture(scope="module")
def stage() -> ConditionStage:
    return ConditionStage.load(Settings(checkpoint=str(GOLDEN_CHECKPOINT)))


def steps(stage: ConditionStage, picture: Any, count: int) -> list[Arrays]:
    state = stage.open({"picture": picture}, SIZE)
    found = [stage.step(state, {}, {}) for _ in range(count)]
    stage.close(state)
    return found


def test_a_second_session_encodes_nothing_and_gets_the_same_bits(
    stage: ConditionStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = np.random.default_rng(1).integers(0, 256, (32, 32, 3), np.uint8)
    stage.cache = ConditionCache(2**20)
    first = steps(stage, picture, 13)
    calls = []
    encode = stage.encoder.encode
    monkeypatch.setattr(stage.encoder, "encode", lambda *a: calls.append(1) or encode(*a))
    second = steps(stage, picture, 13)
    assert calls == []
    stage.cache = ConditionCache(0)
    alone = steps(stage, picture, 13)
    assert len(calls) == 30
    for shared, own, again in zip(first, alone, second, strict=True):
        np.testing.assert_array_equal(shared["condition"], own["condition"])
        np.testing.assert_array_equal(again["condition"], own["condition"])
        assert shared["steady"][0] == own["steady"][0] == again["steady"][0]


def test_a_session_goes_on_by_itself_when_its_picture_was_forgotten(stage: ConditionStage) -> None:
    picture = np.random.default_rng(2).integers(0, 256, (32, 32, 3), np.uint8)
    stage.cache = ConditionCache(0)
    expected = steps(stage, picture, 5)
    stage.cache = ConditionCache(2**20)
    steps(stage, picture, 3)
    state = stage.open({"picture": picture}, SIZE)
    found = [stage.step(state, {}, {}) for _ in range(3)]
    assert state.encoded == 0
    stage.cache = ConditionCache(2**20)
    found += [stage.step(state, {}, {}) for _ in range(2)]
    assert state.encoded == 5
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one["condition"], other["condition"])
