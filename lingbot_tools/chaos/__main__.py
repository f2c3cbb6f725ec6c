"""`python -m lingbot_tools.chaos`, which `scripts/chaos` runs."""

from __future__ import annotations

import secrets
import sys
from collections import Counter
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from lingbot_tools.bench.commands import one_line_errors
from lingbot_tools.chaos.run import Outcome, Plan, run


@click.command(context_settings={"show_default": True})
@click.option("--seed", type=int, help="Decides what every client does.  [default: random]")
@click.option("--minutes", type=click.FloatRange(0.05, 60), default=2.0, help="How long.")
@click.option("--players", type=click.IntRange(1, 64), default=10, help="Clients at a time.")
@click.option("--max-sessions", type=click.IntRange(1, 64), default=8, help="Of the server.")
@click.option("--scale", type=click.FloatRange(0, 1), default=0.01, help="Of simulated costs.")
@click.option("--kill-every", type=click.FloatRange(0), default=20.0, help="Seconds; 0: never.")
@click.option("--log", type=click.Path(path_type=Path, dir_okay=False), help="Server's output.")
def main(
    seed: int | None,
    minutes: float,
    players: int,
    max_sessions: int,
    scale: float,
    kill_every: float,
    log: Path | None,
) -> None:
    """Do everything a client must not do, kill workers, and check that nothing else goes wrong."""
    seed = secrets.randbelow(10**6) if seed is None else seed
    click.echo(f"seed {seed}")
    plan = Plan(seed, minutes * 60, players, max_sessions, scale, kill_every)
    console = Console(stderr=True)
    with one_line_errors(), console.status("starting the server") as status:
        outcome = run(plan, lambda tally: status.update(count(tally)), log)
    Console().print(table(outcome.tally))
    report(seed, outcome)


def count(tally: Counter[str]) -> str:
    kills = sum(number for what, number in tally.items() if what.startswith("killed"))
    return f"{tally['sessions']} sessions, {tally['FRAMES']} parts of chunks, {kills} kills"


def table(tally: Counter[str]) -> Table:
    """Responses are in capitals, what clients did is not."""
    result = Table(title="what happened, on simulated stages", title_justify="left")
    result.add_column("what")
    result.add_column("times", justify="right")
    for what, number in sorted(tally.items(), key=lambda item: (item[0].islower(), item[0])):
        result.add_row(what, str(number))
    return result


def report(seed: int, outcome: Outcome) -> None:
    """Say what was broken, if anything, with all that led to it; exit code 1 then."""
    violation = outcome.violation
    if violation is None:
        click.echo(f"seed {seed}: nothing lost, repeated, reordered, mixed up or left behind")
        return
    click.echo(f"seed {seed}: VIOLATION {f'in life {violation.where}' if violation.where else ''}")
    click.echo(f"  {violation}")
    for line in violation.history:
        click.echo(f"  {line}")
    sys.exit(1)


if __name__ == "__main__":
    main(prog_name="scripts/chaos")
