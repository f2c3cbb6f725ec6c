from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from lingbot_client import WorldClient
from lingbot_client.frames import FramePart

from lingbot_tools.bench.commands import frame_size
from lingbot_tools.bench.drive import FrameSize, mark_check, open_session
from lingbot_triton.simulated.marks import Mark, fingerprint, write_mark
from tests.unit.client.fake_server import FakeServer

SEED = 7


def part(marks: list[Mark], chunk_index: int = 2, frame_index: int = 21) -> FramePart:
    frames = np.zeros((len(marks), 4, 4, 3), np.uint8)
    for frame, mark in zip(frames, marks, strict=True):
        write_mark(frame, mark)
    info: dict[str, Any] = {}
    return FramePart(chunk_index, 0, 3, frame_index, frames, info, 0.0, 0.0)


def marks(**changes: int) -> list[Mark]:
    right = {"fingerprint": fingerprint(SEED), "chunk_index": 2, "frame_index": 21} | changes
    return [Mark(**right | {"frame_index": right["frame_index"] + n}) for n in range(4)]


def test_frames_with_the_right_marks_are_right() -> None:
    assert mark_check(SEED)(part(marks())) == ""


@pytest.mark.parametrize(
    "change", [{"fingerprint": fingerprint(SEED + 1)}, {"chunk_index": 3}, {"frame_index": 22}]
)
def test_frames_of_another_session_chunk_or_place_are_found(change: dict[str, int]) -> None:
    assert "a frame is marked" in mark_check(SEED)(part(marks(**change)))


def test_one_wrong_frame_among_right_ones_is_found() -> None:
    assert mark_check(SEED)(part([*marks()[:3], marks()[0]])) != ""


def test_a_size_is_width_times_height() -> None:
    assert frame_size("832x480") == FrameSize(832, 480)


@pytest.mark.parametrize("text", ["832", "832x", "x480", "832x480x3", "axb", "-1x2"])
def test_anything_else_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not WIDTHxHEIGHT"):
        frame_size(text)


def test_no_two_sessions_have_the_same_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = []
    client = WorldClient(transport=FakeServer())
    monkeypatch.setattr(client, "open_session", lambda picture, *_, **__: pictures.append(picture))
    for _ in range(2):
        open_session(client, FrameSize(32, 16), 3, SEED)
    first, second = (np.asarray(picture) for picture in pictures)
    assert first.shape == (16, 32, 3)
    assert (first != second).any()
