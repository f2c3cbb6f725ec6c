"""`scripts/train-tiny`: from nothing to a checkpoint of the tiny world."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import click
import torch
from rich.console import Console

from lingbot_tools.tiny_world.export import MAX_BYTES, size_of
from lingbot_tools.tiny_world.films import FilmsSize
from lingbot_tools.tiny_world.loop import Work
from lingbot_tools.tiny_world.stages import Minutes, Plan, PlanError, Training

INTERRUPTED = 130
DEFAULT_WORK = Path(__file__).resolve().parents[2] / "out" / "train-tiny"
_DEFAULT = Minutes()


@click.command(context_settings={"show_default": True})
@click.option("--work", type=click.Path(path_type=Path, file_okay=False), default=DEFAULT_WORK)
@click.option("--seed", type=int, default=0)
@click.option("--vae-minutes", type=click.FloatRange(0), default=_DEFAULT.vae)
@click.option("--film-minutes", type=click.FloatRange(0), default=_DEFAULT.films)
@click.option("--dit-minutes", type=click.FloatRange(0), default=_DEFAULT.dit)
@click.option("--films", type=click.IntRange(16), default=3200, help="At most; of 81 frames each.")
@click.option("--threads", type=click.IntRange(1), default=2, help="Cores to use.")
@click.option("--export-only", is_flag=True, help="Write the checkpoint from what there is.")
def main(
    work: Path,
    seed: int,
    vae_minutes: float,
    film_minutes: float,
    dit_minutes: float,
    films: int,
    threads: int,
    export_only: bool,
) -> None:
    """Train the tiny world's weights, stage by stage, within the given minutes.

    Everything is kept in the work folder, every two minutes and on Ctrl-C: the same command goes
    on from there. losses.png shows the curves, checkpoint/ is the result.
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background jobs ignore the first
        signal.signal(number, signal.default_int_handler)
    torch.set_num_threads(threads)
    console = Console()
    minutes = Minutes(vae_minutes, film_minutes, dit_minutes)
    plan = Plan(seed=seed, minutes=minutes, films=FilmsSize(films), processes=threads)
    training = Training(plan, Work(work), console)
    try:
        checkpoint = training.export() if export_only else training.run()
    except KeyboardInterrupt:
        console.print(f"stopped; everything so far is in {work}, the same command goes on")
        sys.exit(INTERRUPTED)
    except PlanError as error:
        raise click.ClickException(str(error)) from None
    size = size_of(checkpoint)
    console.print(f"{checkpoint} holds {size / 1e6:.1f} MB; at most {MAX_BYTES / 1e6:.0f} may ship")


if __name__ == "__main__":
    main(prog_name="scripts/train-tiny")
