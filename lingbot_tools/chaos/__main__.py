"""`python -m lingbot_tools.chaos`, which `scripts/chaos` runs."""

from __future__ import annotations

import secrets
import sys
from collections import Counter
from typing import Any

import click
from rich.console import Console

from lingbot_tools.bench.commands import FILE, one_line_errors
from lingbot_tools.bench.report import new_table
from lingbot_tools.chaos.ledger import Violation
from lingbot_tools.chaos.run import run


@click.command(context_settings={"show_default": True})
@click.option("--seed", type=int, help="Decides what every client does.  [default: random]")
@click.option("--minutes", type=click.FloatRange(0.05, 60), default=2.0, help="How long.")
@click.option("--players", type=click.IntRange(1, 64), default=10, help="Clients at a time.")
@click.option("--max-sessions", type=click.IntRange(1, 64), default=8, help="Of the server.")
@click.option("--scale", type=click.FloatRange(0, 1), default=0.01, help="Of simulated costs.")
@click.option("--kill-every", type=click.FloatRange(0), default=20.0, help="Seconds; 0: never.")
@click.option("--log", type=FILE, help="Server's output.")
def main(seed: int | None, minutes: float, **options: Any) -> None:
    """Do everything a client must not do, kill workers, and check that nothing else goes wrong."""
    seed = secrets.randbelow(10**6) if seed is None else seed
    click.echo(f"seed {seed}")
    tally: Counter[str] = Counter()
    outcome = "nothing lost, repeated, reordered, mixed up or left behind"
    with one_line_errors(), Console(stderr=True).status(f"playing for {minutes:g} minutes"):
        try:
            run(tally, seed=seed, seconds=60 * minutes, **options)
        except Violation as violation:
            outcome = f"VIOLATION {violation}"
    table = new_table("what happened, on simulated stages", ["what"], ["times"])
    # Responses are in capitals and come first, what clients did is not.
    for what, number in sorted(tally.items(), key=lambda item: (item[0].islower(), item[0])):
        table.add_row(what, str(number))
    Console().print(table)
    click.echo(f"seed {seed}: {outcome}")
    sys.exit(outcome.startswith("VIOLATION"))


if __name__ == "__main__":
    main(prog_name="scripts/chaos")
