"""`scripts/eval-tiny`: the tiny world's weights against the renderer's truth."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import click
import torch
from lingbot_client import WorldClient
from lingbot_client.figures import figures
from lingbot_client.pace import Gate, Pace, Played, play_session
from PIL import Image
from rich.console import Console
from rich.progress import Progress

from lingbot_tools.bench.hosting import computing, serving
from lingbot_tools.tiny_world.measures import LONG_OPTIONS, Extent, load_stages, measure, truth_of
from lingbot_tools.tiny_world.renderer import HEIGHT, WIDTH
from lingbot_tools.tiny_world.report import RealTime, judge, table, write_animation, write_sheet
from lingbot_tools.tiny_world.scene import Scene
from lingbot_tools.tiny_world.train import DEFAULT_WORK

_TIMED_CHUNKS, _WARM_UP = 30, 3
_TIMED_KEYS = ("w", "wl", "l", "", "j")
FOLDER = click.Path(path_type=Path, file_okay=False)


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
    extent = Extent(scenes, min(scenes, Extent.key_scenes), min(scenes, long_scenes))
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
    settings = {"threads": 1, "max_area": WIDTH * HEIGHT + 1, "device": "cpu"}
    with serving(None, computing(str(checkpoint), **settings)) as target:
        played = asyncio.run(_play(WorldClient(target.grpc)))
    if played.errors:
        raise click.ClickException(played.errors[0])
    result = figures([played.samples], _WARM_UP)
    return RealTime(result.period.p95 / 1000, result.first_frames_server.p95 / 1000)


async def _play(client: WorldClient) -> Played:
    scene = Scene.sample(0)
    session = client.open_session(
        Image.fromarray(truth_of(scene, ("",))[0]),
        scene.prompt,
        kv_window_frames=LONG_OPTIONS.kv_window_frames,
        kv_sink_frames=LONG_OPTIONS.kv_sink_frames,
    )
    return await play_session(session, _TIMED_KEYS, Pace(_TIMED_CHUNKS), Gate(1))


if __name__ == "__main__":
    main(prog_name="scripts/eval-tiny")
