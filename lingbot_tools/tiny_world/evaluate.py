"""`scripts/eval-tiny`: the tiny world's weights against the renderer's truth."""

from __future__ import annotations

import asyncio
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import torch
from lingbot_client import WorldClient
from lingbot_client.figures import figures
from lingbot_client.hud import key_border, with_keys
from lingbot_client.pace import Gate, Pace, Played, play_session
from lingbot_client.video import FRAMES_PER_SECOND
from PIL import Image, ImageDraw, ImageFont
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from lingbot_tools.bench.hosting import computing, serving
from lingbot_tools.tiny_world.measures import (
    LONG_OPTIONS,
    Extent,
    Frames,
    Values,
    Walked,
    load_stages,
    measure,
    truth_of,
)
from lingbot_tools.tiny_world.renderer import HEIGHT, WIDTH
from lingbot_tools.tiny_world.scene import Scene, chunk_frames
from lingbot_tools.tiny_world.train import DEFAULT_WORK

_TIMED_CHUNKS, _WARM_UP = 30, 3
_TIMED_KEYS = ("w", "wl", "l", "", "j")
_SCALE, _GAP, _LABEL_WIDTH = 2, 4, 76
FOLDER = click.Path(path_type=Path, file_okay=False)


@dataclass(frozen=True)
class Wanted:
    """One figure and its bar."""

    name: str
    value: float
    low: float = -math.inf
    high: float = math.inf

    @property
    def met(self) -> bool:
        return self.low <= self.value <= self.high  # NaN never is

    @property
    def shown(self) -> str:
        """The value to three digits, or to as many as show whether the bar is met."""
        texts = [f"{self.value:.{digits}g}" for digits in range(3, 18)]
        telling = (text for text in texts if replace(self, value=float(text)).met == self.met)
        return next(telling, texts[0])

    @property
    def wanted(self) -> str:
        if math.isinf(self.low):
            return f"≤ {self.high:g}"
        return f"≥ {self.low:g}" if math.isinf(self.high) else f"{self.low:g} to {self.high:g}"

    def to_json(self) -> dict[str, Any]:
        """Without the bounds themselves: JSON knows no infinity."""
        names = ("name", "value", "shown", "wanted", "met")
        return {name: getattr(self, name) for name in names}


class RealTime(NamedTuple):
    """Through the whole server, in seconds."""

    period: float
    first_frames: float


def judge(values: Values, real_time: RealTime | None) -> list[Wanted]:
    """All figures; real time is left out where it was not measured."""
    generated, sharpness, contrast = _mean(values.generated), values.sharpness, values.contrast
    change = {key: _mean(changes) for key, changes in values.changes.items()}
    still = change.pop("") / min(change.values())
    rows = [
        Wanted("VAE reconstruction, PSNR in dB", _mean(values.reconstruction), 26),
        Wanted("generated over the frozen first frame, dB", generated - _mean(values.frozen), 3),
        Wanted("generated over other keys, dB", generated - _mean(values.other_keys), 3),
        Wanted("turns that go the right way", _mean(values.turned_right), 0.95),
        Wanted("forward chunks that enlarge", _mean(values.enlarged), 0.9),
        Wanted("change standing still, of the least of any key", still, high=0.95),
        Wanted("sharpness after 30 chunks, of the truth's, least", min(sharpness), 0.6, 1.4),
        Wanted("sharpness after 30 chunks, of the truth's, most", max(sharpness), 0.6, 1.4),
        Wanted("contrast after 30 chunks, of the truth's, least", min(contrast), 0.7, 1.3),
        Wanted("contrast after 30 chunks, of the truth's, most", max(contrast), 0.7, 1.3),
        Wanted("colour shift after 30 chunks, of 255", max(values.colour_shift), high=20),
    ]
    if real_time is not None:  # a chunk is 0.75 s of video
        rows.append(Wanted("chunk period, s", real_time.period, high=0.75))
        rows.append(Wanted("first frames, s", real_time.first_frames, high=0.4))
    return rows


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def table(rows: Sequence[Wanted]) -> Table:
    drawn = Table("measure", "value", "wanted", "")
    for row in rows:
        drawn.add_row(row.name, row.shown, row.wanted, "met" if row.met else "NOT MET")
    return drawn


def write_sheet(path: Path, walks: Sequence[Walked]) -> None:
    """For each scene the keys of every chunk above its last frame, truth first, then generated."""
    height, width = (_SCALE * side for side in walks[0].truth.shape[1:3])
    border = key_border("", width, height).shape[0]
    row, column = border + 2 * (height + _GAP) + 2 * _GAP, width + _GAP
    size = (_LABEL_WIDTH + column * (1 + len(walks[0].keys)), row * len(walks))
    sheet = Image.new("RGB", size, "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    for number, walk in enumerate(walks):
        last = [0, *(chunk_frames(chunk).stop - 1 for chunk in range(len(walk.keys)))]
        for place, held in enumerate(walk.keys, 1):
            keys = Image.fromarray(key_border(held, width, height))
            sheet.paste(keys, (_LABEL_WIDTH + place * column, number * row))
        for line, name in enumerate(("truth", "generated")):
            upper = number * row + border + line * (height + _GAP)
            draw.text((_GAP, upper + height // 2), name, (40, 40, 40), font, "lm")
            for place, frame in enumerate(_enlarged(getattr(walk, name)[last])):
                sheet.paste(Image.fromarray(frame), (_LABEL_WIDTH + place * column, upper))
    sheet.save(path, optimize=True)


def write_animation(path: Path, walks: Sequence[Walked]) -> None:
    """All scenes one after another, truth left and generated right, the keys below; a WebP."""
    pictures: list[Image.Image] = []
    for walk in walks:
        left, right = _enlarged(walk.truth), _enlarged(walk.generated)
        film = np.concatenate((left, np.full_like(left[:, :, :_GAP], 255), right), axis=2)
        for chunk, held in enumerate(walk.keys):
            pictures += map(Image.fromarray, with_keys(film[chunk_frames(chunk)], held))
    duration = round(1000 / FRAMES_PER_SECOND)
    pictures[0].save(
        path, save_all=True, append_images=pictures[1:], duration=duration, loop=0, quality=80
    )


def _enlarged(film: Frames) -> Frames:
    size = _SCALE * film.shape[2], _SCALE * film.shape[1]
    pictures = [Image.fromarray(frame).resize(size, Image.Resampling.BICUBIC) for frame in film]
    return np.stack([np.asarray(picture) for picture in pictures])


@click.command(context_settings={"show_default": True})
@click.option("--checkpoint", type=FOLDER, default=DEFAULT_WORK / "checkpoint")
@click.option(
    "--out",
    type=FOLDER,
    help="For evaluation.json, .png and .webp.  [default: the folder that the checkpoint's is in]",
)
@click.option("--scenes", type=click.IntRange(1), default=Extent.scenes)
@click.option("--long-scenes", type=click.IntRange(1), default=Extent.long_scenes)
@click.option("--server", is_flag=True, help="Also measure real time through a server.")
@click.option("--threads", type=click.IntRange(1), default=2)
def main(
    checkpoint: Path, out: Path | None, scenes: int, long_scenes: int, server: bool, threads: int
) -> None:
    """Play scenes that training never saw, and compare with what the renderer shows.

    Ends with 1 where a bar is not met. scripts/train-tiny --export-only puts the figures into the
    checkpoint's card.
    """
    torch.set_num_threads(threads)
    console = Console()
    folder = out or checkpoint.parent
    folder.mkdir(parents=True, exist_ok=True)
    extent = Extent(scenes, long_scenes=long_scenes)
    stages = load_stages(checkpoint)
    with Progress(console=console) as progress:
        task = progress.add_task("scenes", total=scenes)
        values = measure(stages, extent, lambda _: progress.advance(task))
    rows = judge(values, time_server(checkpoint) if server else None)
    write_sheet(folder / "evaluation.png", values.walks)
    write_animation(folder / "evaluation.webp", values.walks)
    kept = {name: value for name, value in vars(values).items() if name != "walks"}
    report = {"scenes": scenes, "bars": [row.to_json() for row in rows], "values": kept}
    (folder / "evaluation.json").write_text(json.dumps(report, indent=1) + "\n")
    console.print(table(rows))
    console.print(f"wrote {folder}/evaluation.json, .png and .webp")
    if not all(row.met for row in rows):
        sys.exit(1)


def time_server(checkpoint: Path) -> RealTime:
    """95th percentiles of a session in a closed loop, on a server of its own."""
    scene = Scene(0)
    picture = Image.fromarray(truth_of(scene, ("",))[0])
    options = LONG_OPTIONS.model_dump(include={"kv_window_frames", "kv_sink_frames"})

    async def play(address: str) -> Played:
        session = WorldClient(address).open_session(picture, scene.prompt, **options)
        return await play_session(session, _TIMED_KEYS, Pace(_TIMED_CHUNKS), Gate(1))

    settings = {"threads": 1, "max_area": WIDTH * HEIGHT + 1, "device": "cpu"}
    with serving(None, computing(str(checkpoint), **settings)) as target:
        played = asyncio.run(play(target.grpc))
    if played.errors:
        raise click.ClickException(played.errors[0])
    result = figures([played.samples], _WARM_UP)
    return RealTime(result.period.p95 / 1000, result.first_frames_server.p95 / 1000)


if __name__ == "__main__":
    main(prog_name="scripts/eval-tiny")
