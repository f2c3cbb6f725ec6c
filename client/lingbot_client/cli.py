"""The command line: `lingbot-world play`, `bench`, `info` and `doctor`; plug-ins add others."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.markup import escape

from lingbot_client import bench as benchmark
from lingbot_client import controls
from lingbot_client.client import DEFAULT_URL, WorldClient
from lingbot_client.doctor import Level, examine
from lingbot_client.errors import WorldError
from lingbot_client.pace import Pace
from lingbot_client.picture import DEFAULT_PROMPT, default_picture
from lingbot_client.playing import make_plan, play_plan, progress_bar, session_options, write_spans
from lingbot_client.plugins import PluginGroup
from lingbot_client.report import chunk_table, server_tables
from lingbot_client.triton import TLS

T = TypeVar("T")

DEFAULT_KEYS = "w w wl . sa"
INTERRUPTED = 130
"""Exit code of a program that Ctrl-C ended."""

FILE = click.Path(path_type=Path)


@click.group(cls=PluginGroup)
def main() -> None:
    """Steer through a world that a LingBot-World-Fast server makes up."""


def server_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options every command needs to reach a server."""
    for option in (
        click.option("--root-certificates", type=FILE, help="PEM file to trust; implies --tls."),
        click.option("--tls", is_flag=True, help="Encrypt the connection."),
        click.option("--url", default=DEFAULT_URL, show_default=True, help="gRPC address."),
    ):
        command = option(command)
    return command


def world_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of every command that opens sessions."""
    for option in (
        click.option("--json", "report", type=FILE, help="Report to write, as JSON."),
        click.option("--ahead", is_flag=True, help="Send each control one chunk ahead."),
        click.option("--option", "pairs", multiple=True, metavar="NAME=JSON", help="For sessions."),
        click.option("--size-area", help="Frame area: WIDTHxHEIGHT, or a number of pixels."),
        click.option("--seed", type=int, default=42, show_default=True),
        click.option("--keys", default=DEFAULT_KEYS, show_default=True, help='"." is none.'),
        click.option("--prompt", default=DEFAULT_PROMPT, show_default=True),
        click.option("--image", type=FILE, help="First picture; a hall if left out."),
    ):
        command = option(command)
    return command


@main.command()
@server_options
@world_options
@click.option("--poses", type=FILE, help="Instead of keys: [n, 4, 4] in an .npy or JSON file.")
@click.option("--chunks", type=click.IntRange(1), help="How many; as many as controls if left out.")
@click.option("--out", type=FILE, help="Video to write.")
@click.option("--sheet", type=FILE, help="Contact sheet to write, a row per chunk.")
@click.option("--hud", is_flag=True, help="Show the keys on a border of the video.")
@click.option("--timeline", type=FILE, help="Picture to write of what each stage did when.")
@click.option("--trace", type=FILE, help="The same for ui.perfetto.dev, as JSON.")
def play(
    url: str,
    tls: bool,
    root_certificates: Path | None,
    report: Path | None,
    timeline: Path | None,
    trace: Path | None,
    **options: Any,
) -> None:
    """Play one session and show how long each chunk took."""
    try:
        plan = make_plan(**options)
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from None
    if timeline is not None or trace is not None:
        plan.options["trace"] = True
    client = make_client(url, tls, root_certificates)
    try:
        recording = run(play_plan(client, plan))
    except ValueError as error:  # poses that make no whole chunks of this model
        raise click.ClickException(str(error)) from None
    if report is not None:
        report.write_text(recording.to_json())
    write_spans(recording, timeline, trace)
    Console().print(chunk_table(recording))
    if recording.interrupted:
        sys.exit(INTERRUPTED)


@main.command()
@server_options
@world_options
@click.option("--sessions", type=click.IntRange(1), default=1, help="How many at a time.")
@click.option("--chunks", type=click.IntRange(1), default=20, help="Measured in each session.")
@click.option("--warm-up", type=click.IntRange(0), default=2, help="Chunks before those.")
@click.option("--think", type=click.FloatRange(0), default=0.0, help="Seconds before each control.")
def bench(
    url: str, tls: bool, root_certificates: Path | None, report: Path | None, **options: Any
) -> None:
    """Measure sessions at a person's pace; exits with 1 when a chunk failed."""
    try:
        load = make_load(**options)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    client = make_client(url, tls, root_certificates)
    with progress_bar() as progress:
        task = progress.add_task("measuring", total=load.sessions * load.pace.chunks)
        measured = run(benchmark.measure(client, load, lambda sample: progress.advance(task)))
    if report is not None:
        report.write_text(measured.to_json())
    Console().print(benchmark.table(measured))
    if measured.errors:
        raise click.ClickException("; ".join(measured.errors))


@main.command()
@server_options
def info(url: str, tls: bool, root_certificates: Path | None) -> None:
    """Show the server's state, its models, and what the orchestrator takes."""

    async def ask() -> None:
        async with make_client(url, tls, root_certificates) as client:
            Console().print(*server_tables(await client.server_info()), sep="\n")

    run(ask())


@main.command()
@server_options
@click.option("--patience", default=120.0, show_default=True, help="Seconds a response may take.")
def doctor(url: str, tls: bool, root_certificates: Path | None, patience: float) -> None:
    """Check a server, play two chunks, and say in words what is wrong; exit code 1 then."""
    encrypted = tls or root_certificates is not None
    console = Console(highlight=False)

    async def check() -> bool:
        healthy = True
        async with make_client(url, tls, root_certificates) as client:
            async for finding in examine(client, url, tls=encrypted, patience=patience):
                sign = {Level.GOOD: "[green]✓", Level.NOTE: "[yellow]!", Level.WRONG: "[red]✗"}
                line = f"{sign[finding.level]} {finding.what}[/]: {escape(finding.text)}"
                console.print(line, soft_wrap=True)
                healthy = healthy and finding.level is not Level.WRONG
        return healthy

    if not run(check()):
        sys.exit(1)


def make_client(url: str, tls: bool, root_certificates: Path | None) -> WorldClient:
    encrypted = tls or root_certificates is not None
    return WorldClient(url, tls=TLS(root_certificates) if encrypted else None)


def make_load(
    *, image: Path | None, keys: str, seed: int, size_area: str | None, pairs: tuple[str, ...],
    chunks: int, warm_up: int, think: float, ahead: bool, **rest: Any,
) -> benchmark.Load:  # fmt: skip
    """Turn what was typed into a load; raises ValueError for what makes no sense."""
    return benchmark.Load(
        image=default_picture() if image is None else image,
        keys=controls.parse_keys(keys),
        pace=Pace(warm_up + chunks, think, ahead),
        warm_up=warm_up,
        options=session_options(seed, size_area, pairs),
        **rest,
    )


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end; what goes wrong becomes one line and exit code 1, Ctrl-C exit code 130."""
    try:
        return asyncio.run(coroutine)
    except (WorldError, OSError) as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
