"""What the commands have in common: options, progress, and how an error leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from lingbot_client import WorldError
from lingbot_client.cli import INTERRUPTED
from lingbot_client.playing import progress_bar

from lingbot_tools.bench.drive import FrameSize
from lingbot_triton.simulated.profiles import PROFILES
from lingbot_triton.triton.installation import InstallationError
from lingbot_triton.triton.server import ServerError

Decorator = Callable[[Callable[..., None]], Callable[..., None]]

FILE = click.Path(path_type=Path, dir_okay=False)
FULL_SIZE = FrameSize(832, 480)
TINY_SIZE = FrameSize(96, 64)


def frame_size(text: str) -> FrameSize:
    """Read WIDTHxHEIGHT; click turns the ValueError into a usage error."""
    width, _, height = text.partition("x")
    if not (width.isdecimal() and height.isdecimal()):
        raise ValueError(f"{text!r} is not WIDTHxHEIGHT")
    return FrameSize(int(width), int(height))


def count(name: str, default: int | None, description: str = "", least: int = 1) -> Decorator:
    """An option that is a whole number."""
    return click.option(name, type=click.IntRange(least), default=default, help=description)


def warm_up(default: int) -> Decorator:
    return count("--warm-up", default, "Chunks left out at the start of every session.")


def size(description: str, default: str | None = None) -> Decorator:
    return click.option("--size", type=frame_size, metavar="WxH", default=default, help=description)


def simulation(scale: float) -> Decorator:
    """`--profile` and `--scale`, whose default is `scale`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        command = click.option("--scale", type=click.FloatRange(0), default=scale,
            help="Factor on the profile's costs.")(command)  # fmt: skip
        return click.option("--profile", type=click.Choice(sorted(PROFILES)),
            default="seed-4xh100", help="Costs of the simulated stages.")(command)  # fmt: skip

    return decorate


checkpoint = click.option(
    "--checkpoint", help='Compute instead of simulating: a folder, or "tiny".'
)
json_report = click.option("--json", "json_path", type=FILE, help="Report to write, as JSON.")
enforce = click.option("--enforce", is_flag=True, help="Exit with 1 when a bar is missed.")


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """A bar on stderr; call what it gives for each chunk, with what is going on."""
    with progress_bar() as bar:
        task = bar.add_task("starting", total=total)
        yield lambda description: bar.update(task, advance=1, description=description)


@contextmanager
def one_line_errors(*further: type[Exception]) -> Iterator[None]:
    """What goes wrong with the server becomes one line and exit code 1, Ctrl-C exit code 130."""
    known: tuple[type[Exception], ...] = (WorldError, ServerError, InstallationError, OSError)
    try:
        yield
    except known + further as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        click.echo("interrupted; the server is stopped", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
