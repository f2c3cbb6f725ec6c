"""`scripts/demo`: start a server, play a few chunks, keep the video, and stop everything."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click
from lingbot_client.cli import DEFAULT_KEYS, FILE, INTERRUPTED
from lingbot_client.cli import run as run_client
from lingbot_client.client import WorldClient
from lingbot_client.errors import WorldError
from lingbot_client.picture import DEFAULT_PROMPT, encode_picture
from lingbot_client.playing import Plan, make_plan, play_plan
from lingbot_client.report import Recording, chunk_table
from rich.console import Console

from lingbot_tools.bench.commands import one_line_errors
from lingbot_triton.protocol import KEYS
from lingbot_triton.triton.foreground import foreground
from lingbot_triton.triton.serve import load_settings, variables
from lingbot_triton.triton.server import ServerConfig

REPOSITORY = Path(__file__).resolve().parent.parent


@click.command(context_settings={"show_default": True})
@click.option("--image", type=FILE, help="First picture.  [default: a hall]")
@click.option("--prompt", default=DEFAULT_PROMPT)
@click.option("--keys", default=DEFAULT_KEYS, help='Keys of each chunk; "." is none.')
@click.option("--seed", type=int, default=42)
@click.option("--chunks", type=click.IntRange(1), default=6)
@click.option("--hud", is_flag=True, help="Show the keys on a border of the video.")
@click.option("--out", type=FILE, help="Folder for the video and its picture.  [default: out]")
@click.option("--checkpoint", type=FILE, help="Folder of weights.  [default: the tiny ones]")
def main(out: Path | None, checkpoint: Path | None, **options: Any) -> None:
    """Start a server on free ports, play a session on it, and write what was seen.

    The weights that come with the project know one small world, of pillars, trees and checkered
    floors, in which the keys do what they say. Pictures of anything else need --checkpoint.
    """
    folder = REPOSITORY / "out" if out is None else out
    environment = variables({"checkpoint": checkpoint})
    load_settings(environment)
    plan = prepare(folder, **options)
    with one_line_errors():
        recording = play(plan, environment)
    Console().print(chunk_table(recording))
    click.echo(f"wrote {plan.out} and {plan.sheet}")
    if recording.interrupted:
        sys.exit(INTERRUPTED)


def prepare(folder: Path, image: Path | None, keys: str, **options: Any) -> Plan:
    """What to play; raises ClickException, before anything starts, for what cannot be."""
    wrong = sorted(set(keys) - set(KEYS) - set(" ."))
    if wrong:
        raise click.ClickException(f"{wrong[0]!r} is no key; keys are {' '.join(KEYS)}")
    try:
        if image is not None:
            encode_picture(image)
        folder.mkdir(parents=True, exist_ok=True)
        files: dict[str, Any] = {"out": folder / "demo.mp4", "sheet": folder / "demo.png"}
        unused: dict[str, Any] = {"poses": None, "size_area": None, "pairs": (), "ahead": False}
        return make_plan(image=image, keys=keys, **files, **unused, **options)
    except (WorldError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"cannot write to {folder}: {error.strerror}") from None


def play(plan: Plan, environment: dict[str, str]) -> Recording:
    """Play the plan on a server of its own."""
    started = time.monotonic()
    click.echo("starting the server", err=True)
    with foreground(ServerConfig(environment=environment, start_seconds=3600)) as server:
        click.echo(f"ready after {time.monotonic() - started:.1f} s: grpc {server.grpc}", err=True)
        return run_client(play_plan(WorldClient(server.grpc), plan))


if __name__ == "__main__":
    main(prog_name="scripts/demo")
