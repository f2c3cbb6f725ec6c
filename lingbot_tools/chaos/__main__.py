"""`python -m lingbot_tools.chaos`, which `scripts/chaos` runs: players and a killer, and a server.

Afterwards the server has to be as it was before.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import re
import secrets
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import click
from lingbot_client import WorldClient
from lingbot_client.triton import TritonTransport
from rich.console import Console

from lingbot_tools.bench.commands import FILE, one_line_errors
from lingbot_tools.bench.hosting import Stages
from lingbot_tools.bench.report import new_table
from lingbot_tools.chaos.ledger import Violation
from lingbot_tools.chaos.mischief import AREA, IMAGE
from lingbot_tools.chaos.player import IDLE_SECONDS, WINDOW, Life, World
from lingbot_triton import metrics
from lingbot_triton.stage import STAGES
from lingbot_triton.triton.foreground import foreground
from lingbot_triton.triton.scrape import scrape, total
from lingbot_triton.triton.server import ServerConfig, ServerProcess

SETTINGS = {
    "control_window": WINDOW,
    "session_idle_seconds": IDLE_SECONDS,
    "stage_timeout_seconds": 20,
}
NEVER_SAID = re.compile(
    r"internal error|never retrieved|destroyed but it is pending|Segmentation|Traceback"
)
EMPTY = (
    *(metrics.SESSIONS, metrics.WORKER_STATES, metrics.CALLS),
    *(metrics.CONDITIONS, metrics.CONDITION_BYTES),
)
"""Metrics that are zero while there is no session."""
REFUSED_SECONDS = 0.1
POLL_SECONDS = 0.25
REST_SECONDS = IDLE_SECONDS + 20.0
RELOAD_SECONDS = 60.0
CALM_SECONDS = 2.0
"""How long after a reload sessions may still end with what the death has caused."""

Holdings = dict[str, set[Any]]


@click.command(context_settings={"show_default": True})
@click.option("--seed", type=int, help="Decides what every client does.  [default: random]")
@click.option("--minutes", type=click.FloatRange(0.05, 60), default=2.0, help="How long.")
@click.option("--players", type=click.IntRange(1, 64), default=10, help="Clients at a time.")
@click.option("--max-sessions", type=click.IntRange(1, 64), default=8, help="Of the server.")
@click.option("--scale", type=click.FloatRange(0, 1), default=0.01, help="Of simulated costs.")
@click.option("--kill-every", type=click.FloatRange(0), default=20.0, help="Seconds; 0: never.")
@click.option("--log", type=FILE, help="Server's output.")
def main(seed: int | None, **options: Any) -> None:
    """Do everything a client must not do, kill workers, and check that nothing else goes wrong."""
    seed = secrets.randbelow(10**6) if seed is None else seed
    click.echo(f"seed {seed}")
    tally: Counter[str] = Counter()
    outcome = "nothing lost, repeated, reordered, mixed up or left behind"
    with one_line_errors(), Console(stderr=True).status("playing"):
        try:
            run(tally, seed, **options)
        except Violation as violation:
            outcome = f"VIOLATION {violation}"
    table = new_table("what happened, on simulated stages", ["what"], ["times"])
    # Responses are in capitals and come first, what clients did is not.
    for what, number in sorted(tally.items(), key=lambda item: (item[0].islower(), item[0])):
        table.add_row(what, str(number))
    Console().print(table)
    click.echo(f"seed {seed}: {outcome}")
    sys.exit(outcome.startswith("VIOLATION"))


def run(
    tally: Counter[str], seed: int, max_sessions: int, scale: float, log: Path | None, **plan: Any
) -> None:
    """Start a server, play, stop it, and read what it said; raises Violation or ServerError."""
    environment = Stages("seed-4xh100", scale).environment(max_sessions=max_sessions, **SETTINGS)
    with tempfile.TemporaryDirectory(prefix="lingbot-chaos-") as folder:
        log = log or Path(folder) / "server.log"
        with foreground(ServerConfig(environment=environment, log=log)) as server:
            asyncio.run(play(server, tally, seed, **plan))
        if said := [line for line in log.read_text().splitlines() if NEVER_SAID.search(line)]:
            raise Violation("in the log", "the server said what it should never say", *said)


async def play(
    server: ServerProcess,
    tally: Counter[str],
    seed: int,
    minutes: float,
    players: int,
    kill_every: float,
) -> None:
    """Let the players loose, count what happens, and look at what is left; raises Violation.

    The seed decides what every client does, the machine when it happens.
    """
    before, shared = _holdings(server), TritonTransport(server.grpc)
    world = World(server.grpc, seed, time.monotonic() + 60 * minutes, shared, tally)
    jobs = [_player(world, number) for number in range(players)]
    if kill_every:
        jobs.append(_kill_workers(world, server, kill_every))
    tasks = [asyncio.create_task(job) for job in jobs]
    try:
        await asyncio.gather(*tasks)
        await _come_to_rest(server, before, reloaded=world.disturbed_until > 0)
        async with (
            WorldClient(server.grpc) as client,
            client.open_session(IMAGE, "a hill", max_area=AREA) as session,
        ):
            await session.send("w")
            await session.next_chunk()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await shared.close()


async def _player(world: World, number: int) -> None:
    """One client, until the run is over; some lives take over the id of the one before."""
    random = Random(f"{world.seed}/{number}")
    previous: Life | None = None
    for count in itertools.count():
        if time.monotonic() > world.deadline:
            return
        life = Life(world, f"{number}/{count}", previous)
        await life.live()
        if life.ledger.refused:
            await asyncio.sleep(REFUSED_SECONDS)
        previous = life if random.random() < 0.3 else None


async def _kill_workers(world: World, server: ServerProcess, every: float) -> None:
    """Kill a worker about `every` seconds until the run is nearly over, and see it come back."""
    random = Random(f"{world.seed}/kill")
    while True:
        await asyncio.sleep(every * (0.5 + random.random()))
        if time.monotonic() + every > world.deadline:
            return
        model, killed_at = random.choice([stage.name for stage in STAGES]), time.monotonic()
        before = await asyncio.to_thread(_restarts, server)
        world.disturbed_until = math.inf
        world.tally[f"killed {model}"] += 1
        os.kill(server.model_processes()[model], signal.SIGKILL)
        while await asyncio.to_thread(_restarts, server) <= before:
            await asyncio.sleep(POLL_SECONDS)
            if time.monotonic() > killed_at + RELOAD_SECONDS:
                raise Violation(f"at {model}", f"killed, and not back in {RELOAD_SECONDS:g} s")
        world.disturbed_until = time.monotonic() + CALM_SECONDS


def _restarts(server: ServerProcess) -> float:
    return total(scrape(server.metrics), metrics.RESTARTS.name)


def _holdings(server: ServerProcess) -> Holdings:
    """The server's processes and shared memory."""
    return {
        "processes": set(server.processes()),
        "models": set(server.model_processes()),
        "regions": {path.name for path in server.regions()},
    }


async def _come_to_rest(server: ServerProcess, before: Holdings, *, reloaded: bool) -> None:
    """Wait until the server holds what it held before; raises Violation or ServerError."""
    server.check_running()
    deadline = time.monotonic() + REST_SECONDS
    while left := await asyncio.to_thread(_left, server, before, reloaded):
        if time.monotonic() > deadline:
            raise Violation("at the end", "the server did not come to rest", *left)
        await asyncio.sleep(POLL_SECONDS)


def _left(server: ServerProcess, before: Holdings, reloaded: bool) -> list[str]:
    """What is not as it was; reloaded workers have other ids, but there are not more of them."""
    series = scrape(server.metrics)
    values = ((family.name, total(series, family.name)) for family in EMPTY)
    left = [f"{name} is {value:g}, not 0" for name, value in values if value]
    for name, now in _holdings(server).items():
        replaced = reloaded and name != "models" and len(now) == len(before[name])
        if now != before[name] and not replaced:
            left.append(f"{name} were {sorted(before[name])} and are {sorted(now)}")
    return left


if __name__ == "__main__":
    main(prog_name="scripts/chaos")
