"""`scripts/eval-tiny`: the tiny world's weights against the renderer's truth."""

from __future__ import annotations

import asyncio
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np
import rich
import torch
from lingbot_client import WorldClient
from lingbot_client.figures import figures
from lingbot_client.hud import key_border, with_keys
from lingbot_client.pace import Pace, Played
from lingbot_client.video import FRAMES_PER_SECOND
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from rich.markdown import Markdown
from rich.progress import track

from lingbot_tools.bench import drive
from lingbot_tools.bench.drive import FrameSize
from lingbot_tools.bench.hosting import Stages, serving
from lingbot_tools.tiny_world.measures import (
    KEYS,
    LONG_OPTIONS,
    LONG_SCENES,
    Values,
    Walked,
    load_stages,
    measure,
)
from lingbot_tools.tiny_world.renderer import HEIGHT, WIDTH
from lingbot_tools.tiny_world.scene import chunk_frames
from lingbot_tools.tiny_world.train import DEFAULT_WORK

_TIMED_CHUNKS, _WARM_UP = 30, 3
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


def judge(values: Values) -> list[Wanted]:
    """All figures; real time is left out where it was not measured."""
    mean = {name: float(np.mean(each)) for name, each in values.items()}
    change = {held: mean[f"change_{held}"] for held in KEYS}
    still = change.pop("") / min(change.values())
    sharpness, contrast = values["sharpness"], values["contrast"]
    rows = [
        Wanted("VAE reconstruction, PSNR in dB", mean["reconstruction"], 26),
        Wanted("generated over the frozen first frame, dB", mean["generated"] - mean["frozen"], 3),
        Wanted("generated over other keys, dB", mean["generated"] - mean["other_keys"], 3),
        Wanted("turns that go the right way", mean["turned_right"], 0.95),
        Wanted("forward chunks that enlarge", mean["enlarged"], 0.9),
        Wanted("change standing still, of the least of any key", still, high=0.95),
        Wanted("sharpness after 30 chunks, of the truth's, least", min(sharpness), 0.6, 1.4),
        Wanted("sharpness after 30 chunks, of the truth's, most", max(sharpness), 0.6, 1.4),
        Wanted("contrast after 30 chunks, of the truth's, least", min(contrast), 0.7, 1.3),
        Wanted("contrast after 30 chunks, of the truth's, most", max(contrast), 0.7, 1.3),
        Wanted("colour shift after 30 chunks, of 255", max(values["colour_shift"]), high=20),
    ]
    if "period" in mean:  # a chunk is 0.75 s of video
        rows.append(Wanted("chunk period, s", mean["period"], high=0.75))
        rows.append(Wanted("first frames, s", mean["first_frames"], high=0.4))
    return rows


def table(rows: Sequence[Wanted]) -> str:
    """In Markdown, as the checkpoint's card has it."""
    lines = ["| measure | value | wanted | |", "|---|---|---|---|"]
    for row in rows:
        verdict = "met" if row.met else "NOT MET"
        lines.append(f"| {row.name} | {row.shown} | {row.wanted} | {verdict} |")
    return "\n".join(lines)


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


def _enlarged(film: NDArray[np.uint8]) -> NDArray[np.uint8]:
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
@click.option("--scenes", type=click.IntRange(1), default=32)
@click.option("--long-scenes", type=click.IntRange(1), default=LONG_SCENES)
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
    folder = out or checkpoint.parent
    folder.mkdir(parents=True, exist_ok=True)
    numbers = track(range(scenes), "scenes")
    values, walks = measure(load_stages(checkpoint), numbers, long_scenes)
    if server:
        time_server(checkpoint, values)
    rows = judge(values)
    write_sheet(folder / "evaluation.png", walks)
    write_animation(folder / "evaluation.webp", walks)
    report = {"scenes": scenes, "table": table(rows), "values": values}
    (folder / "evaluation.json").write_text(json.dumps(report, indent=1) + "\n")
    rich.print(Markdown(table(rows)))
    rich.print(f"wrote {folder}/evaluation.json, .png and .webp")
    if not all(row.met for row in rows):
        sys.exit(1)


def time_server(checkpoint: Path, values: Values) -> None:
    """Add 95th percentiles, in seconds, of a session in a closed loop on a server of its own."""
    options = LONG_OPTIONS.model_dump(include={"kv_window_frames", "kv_sink_frames"})

    async def play(address: str) -> Played:
        async with WorldClient(address) as client:
            return await drive.measure(
                client, FrameSize(WIDTH, HEIGHT), Pace(_TIMED_CHUNKS), **options
            )

    stages = Stages(checkpoint=str(checkpoint))
    with serving(None, stages.environment(threads=1, device="cpu")) as target:
        played = asyncio.run(play(target.grpc))
    if played.errors:
        raise click.ClickException(played.errors[0])
    result = figures([played.samples], _WARM_UP)
    values["period"] = [result.period.p95 / 1000]
    values["first_frames"] = [result.first_frames_server.p95 / 1000]


if __name__ == "__main__":
    main(prog_name="scripts/eval-tiny")
