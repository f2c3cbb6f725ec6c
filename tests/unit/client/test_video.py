from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from lingbot_client import Chunk, FramePart, VideoWriter, contact_sheet
from numpy.typing import NDArray
from PIL import Image


def read(path: Path) -> tuple[list[NDArray[Any]], int, str]:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        frames: list[NDArray[Any]] = [
            frame.to_ndarray(format="rgb24") for frame in container.decode(stream)
        ]
        return frames, int(stream.average_rate or 0), str(stream.codec_context.pix_fmt)


def greys(*levels: int, height: int = 32, width: int = 48) -> NDArray[np.uint8]:
    return np.stack([np.full((height, width, 3), level, np.uint8) for level in levels])


def chunk(index: int, keys: str | None, frames: NDArray[np.uint8]) -> Chunk:
    part = FramePart(index, 0, 1, 10 * index, frames, {"keys": keys}, 0.0, 0.0)
    return Chunk.join([part])


@pytest.mark.parametrize("fps", [16, 24])
def test_a_video_reads_back_with_its_frames_rate_and_size(tmp_path: Path, fps: int) -> None:
    path = tmp_path / "world.mp4"
    with VideoWriter(path, fps) as video:
        video.write(greys(0, 60))
        video.write(greys(120, 180, 240))
        assert not path.exists()
    assert video.frames == 5
    frames, rate, pixel_format = read(path)
    assert (len(frames), rate, pixel_format) == (5, fps, "yuv420p")
    assert [round(frame.mean() / 60) for frame in frames] == [0, 1, 2, 3, 4]
    assert frames[0].shape == (32, 48, 3)


def test_without_h264_it_is_mpeg4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(av, "codecs_available", {"mpeg4"})
    path = tmp_path / "world.mp4"
    with VideoWriter(path) as video:
        video.write(greys(0, 100))
    with av.open(str(path)) as container:
        assert container.streams.video[0].codec_context.name == "mpeg4"


def test_odd_sizes_lose_their_last_row_and_column(tmp_path: Path) -> None:
    path = tmp_path / "world.mp4"
    with VideoWriter(path) as video:
        video.write(greys(100, height=33, width=49))
    assert read(path)[0][0].shape == (32, 48, 3)


def test_an_aborted_video_leaves_nothing_behind_and_an_old_one_alone(tmp_path: Path) -> None:
    path = tmp_path / "world.mp4"
    path.write_bytes(b"the old one")
    video = VideoWriter(path)
    with pytest.raises(ZeroDivisionError):
        write_and_fail(video)
    assert video.frames == 2
    assert path.read_bytes() == b"the old one"
    assert list(tmp_path.iterdir()) == [path]


def write_and_fail(video: VideoWriter) -> None:
    with video:
        video.write(greys(0, 100))
        raise ZeroDivisionError


def test_without_frames_there_is_no_file(tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "world.mp4"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_contact_sheet_has_a_row_per_chunk_with_frames_from_first_to_last(tmp_path: Path) -> None:
    path = tmp_path / "sheet.png"
    chunks = [
        chunk(0, "w", greys(10, 20, 30, 40, 50)),
        chunk(1, "", greys(60)),
        chunk(2, None, greys(70, 80)),
    ]
    contact_sheet(chunks, path, columns=3)
    with Image.open(path) as picture:
        sheet = np.asarray(picture)
    middle = [4 + row * 52 + 16 for row in range(3)]
    columns = [110 + column * 52 + 24 for column in range(3)]
    assert sheet.shape == (4 + 3 * 52, 110 + 3 * 52, 3)
    assert sheet[middle][:, columns, 0].tolist() == [[10, 30, 50], [60, 60, 60], [70, 70, 80]]
    for row in range(3):
        for line in range(3):
            top = 4 + row * 52 + line * 15
            assert (sheet[top : top + 15, :100] > 200).any()  # index, keys, frames


def test_a_contact_sheet_of_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one"):
        contact_sheet([], tmp_path / "sheet.png")
