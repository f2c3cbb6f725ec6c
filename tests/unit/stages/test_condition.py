"""The condition stage."""

from __future__ import annotations

import numpy as np
import pytest

from lingbot_triton.errors import BadRequest
from lingbot_triton.options import SessionOptions

SIZE = {"height": 16, "width": 32}


def test_the_mask_marks_the_pictures_frame_only(condition_stage, picture):
    state = condition_stage.open({"picture": picture}, SIZE)
    first, second = (condition_stage.step(state, {}, {})["condition"] for _ in range(2))
    assert first.shape == second.shape == (20, 3, 2, 4)
    assert (first[:4, 0] == 1).all()
    assert (first[:4, 1:] == 0).all()
    assert (second[:4] == 0).all()


def test_a_steady_session_gives_its_memory_back_and_still_answers(condition_stage, picture):
    state = condition_stage.open({"picture": picture}, SIZE)
    steps = [condition_stage.step(state, {}, {}) for _ in range(12)]
    steady = [bool(step["steady"][0]) for step in steps]
    assert steady == sorted(steady)
    assert steady[0] is False
    assert steady[-1] is True
    assert state.memory.features == []
    np.testing.assert_array_equal(
        condition_stage.step(state, {}, {})["condition"], steps[-1]["condition"]
    )


def test_sessions_do_not_meet(condition_stage, picture):
    def steps(state, count):
        return [condition_stage.step(state, {}, {})["condition"] for _ in range(count)]

    alone = steps(condition_stage.open({"picture": picture}, SIZE), 2)
    one = condition_stage.open({"picture": picture}, SIZE)
    other = condition_stage.open({"picture": 255 - picture}, SIZE)
    first = steps(one, 1)
    assert not np.array_equal(steps(other, 1)[0], first[0])
    np.testing.assert_array_equal(np.stack(first + steps(one, 1)), np.stack(alone))


def test_the_callers_picture_may_change_after_opening(condition_stage, picture):
    mine = picture.copy()
    expected = condition_stage.step(condition_stage.open({"picture": mine}, SIZE), {}, {})
    state = condition_stage.open({"picture": mine}, SIZE)
    mine[:] = 0
    np.testing.assert_array_equal(
        condition_stage.step(state, {}, {})["condition"], expected["condition"]
    )


@pytest.mark.parametrize(
    "wrong", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 4), np.uint8), np.zeros((4, 4, 3))]
)
def test_what_is_no_picture_is_refused(condition_stage, wrong):
    with pytest.raises(BadRequest, match=r"must be uint8 \[h, w, 3\]"):
        condition_stage.open({"picture": wrong}, SIZE)


def test_closing_drops_the_memory(condition_stage, picture):
    state = condition_stage.open({"picture": picture}, SIZE)
    condition_stage.step(state, {}, {})
    assert state.memory.features
    condition_stage.close(state)
    assert state.memory.features == []


def test_for_comparison_every_condition_is_really_encoded(condition_stage, picture, monkeypatch):
    encoder, groups = condition_stage.encoder, []
    encode = encoder.encode

    def counted(memory, frames):
        groups.append(frames.shape[1])
        return encode(memory, frames)

    state = condition_stage.open({"picture": picture}, SIZE)
    shared = [condition_stage.step(state, {}, {}) for _ in range(13)]
    monkeypatch.setattr(encoder, "encode", counted)
    options = SessionOptions(reuse_steady_condition=False).to_json()
    state = condition_stage.open({"picture": picture}, SIZE | {"options": options})
    own = [condition_stage.step(state, {}, {}) for _ in range(13)]
    assert groups == [1] + [4] * (13 * 3 - 1)
    assert shared[-1]["steady"][0]
    for one, other in zip(shared, own, strict=True):
        assert not other["steady"][0]
        assert one["condition"].tobytes() == other["condition"].tobytes()
