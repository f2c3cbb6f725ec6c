"""Frames to files: a video, and a sheet that shows every chunk at a glance."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal

import av
import numpy as np
from av.container import OutputContainer
from av.video.stream import VideoStream
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from lingbot_client.frames import Chunk

FRAMES_PER_SECOND = 16

Codec = Literal["libx264", "mpeg4"]

_LABEL_WIDTH, _LABEL_HEIGHT = 110, 48
_GAP = 4
_BACKGROUND = (24, 24, 24)


class VideoWriter:
    """Writes a video as frames come; the file appears only when the `with` block succeeds.

    H.264 where this build of FFmpeg has libx264, MPEG-4 elsewhere. An odd last row or column is
    cut off, as the pixel format wants even sizes. Without any frame there is no file.
    """

    def __init__(self, path: str | os.PathLike[str], fps: int = FRAMES_PER_SECOND) -> None:
        self.path = Path(path)
        self.frames = 0
        """Frames written so far."""
        self._fps = fps
        self._partial = self.path.with_name(
            f".{self.path.stem}.{os.getpid()}.partial{self.path.suffix}"
        )
        self._container: OutputContainer | None = None
        self._stream: VideoStream | None = None

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._close()
            if error is None and self.frames:
                self._partial.replace(self.path)
        finally:
            self._partial.unlink(missing_ok=True)

    def write(self, frames: NDArray[np.uint8]) -> None:
        """Append RGB frames [n, H, W, 3], all of one size."""
        height, width = frames.shape[1] // 2 * 2, frames.shape[2] // 2 * 2
        for pixels in frames[:, :height, :width]:
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
            self._encode(frame, width, height)
            self.frames += 1

    def _encode(self, frame: av.VideoFrame, width: int, height: int) -> None:
        if self._container is None or self._stream is None:
            self._container = av.open(str(self._partial), "w")
            codec: Codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
            self._stream = self._container.add_stream(codec, rate=self._fps)
            self._stream.width, self._stream.height = width, height
            self._stream.pix_fmt = "yuv420p"
        self._container.mux(self._stream.encode(frame))

    def _close(self) -> None:
        if self._container is None or self._stream is None:
            return
        try:
            self._container.mux(self._stream.encode(None))
        finally:
            self._container.close()


def contact_sheet(
    chunks: Sequence[Chunk], path: str | os.PathLike[str], *, columns: int = 4
) -> None:
    """Save a picture with one row per chunk: its index, its keys, and a few frames across it."""
    if not chunks:
        raise ValueError("a contact sheet needs at least one chunk")
    height, width = chunks[0].frames.shape[1:3]
    row_height = max(height, _LABEL_HEIGHT) + _GAP
    size = (
        _LABEL_WIDTH + columns * (width + _GAP),
        _GAP + len(chunks) * row_height,
    )
    sheet = Image.new("RGB", size, _BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    for row, chunk in enumerate(chunks):
        top = _GAP + row * row_height
        draw.multiline_text((_GAP, top), _label(chunk), fill=(255, 255, 255))
        picks = np.linspace(0, len(chunk.frames) - 1, columns).round().astype(int)
        for column, pick in enumerate(picks):
            left = _LABEL_WIDTH + column * (width + _GAP)
            sheet.paste(Image.fromarray(chunk.frames[pick]), (left, top))
    sheet.save(path)


def _label(chunk: Chunk) -> str:
    control = "poses" if chunk.keys is None else f"keys {chunk.keys or '.'}"
    last = chunk.frame_index + len(chunk.frames) - 1
    return f"chunk {chunk.chunk_index}\n{control}\nframes {chunk.frame_index} to {last}"
