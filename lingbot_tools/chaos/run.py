"""One chaotic run: players and a killer against a fresh server, then a look at what is left."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from lingbot_client import WorldClient
from lingbot_client.triton import TritonTransport

from lingbot_tools.chaos.mischief import AREA, IMAGE
from lingbot_tools.chaos.player import Life
from lingbot_tools.chaos.server import NEVER_SAID, Rest, come_to_rest, kill_workers
from lingbot_tools.chaos.world import IDLE_SECONDS, PROFILE, WINDOW, Violation, World
from lingbot_triton.triton.server import ServerConfig, ServerProcess

REST_SECONDS = IDLE_SECONDS + 20.0
REPORT_SECONDS = 1.0
REFUSED_SECONDS = 0.1


@dataclass(frozen=True)
class Plan:
    """One run. The seed decides what every client does, the machine when it happens."""

    seed: int
    seconds: float
    players: int = 10
    max_sessions: int = 8
    scale: float = 0.01
    kill_every: float = 20.0
    """Seconds between worker kills, on average; 0 kills none."""

    def server(self, log: Path | None = None) -> ServerConfig:
        settings = {
            "simulated": PROFILE,
            "simulated_scale": self.scale,
            "max_sessions": self.max_sessions,
            "control_window": WINDOW,
            "session_idle_seconds": IDLE_SECONDS,
            "stage_timeout_seconds": 20,
        }
        environment = {f"LINGBOT_{name.upper()}": str(value) for name, value in settings.items()}
        return ServerConfig(environment=environment, log=log)


@dataclass
class Outcome:
    """What happened in a run."""

    tally: Counter[str] = field(default_factory=Counter)
    violation: Violation | None = None


def run(
    plan: Plan,
    on_progress: Callable[[Counter[str]], None] = lambda tally: None,
    log: Path | None = None,
) -> Outcome:
    """Start a server, let the players loose, and stop the server; raises ServerError.

    What the server says goes to `log`.
    """
    with tempfile.TemporaryDirectory(prefix="lingbot-chaos-") as folder:
        log = log or Path(folder) / "server.log"
        with ServerProcess(plan.server(log)) as server:
            outcome = asyncio.run(_run(plan, server, on_progress))
        said = [line for line in log.read_text().splitlines() if NEVER_SAID.search(line)]
        if said and outcome.violation is None:
            outcome.violation = Violation("the server said what it should never say", "", said)
    return outcome


async def _run(
    plan: Plan, server: ServerProcess, on_progress: Callable[[Counter[str]], None]
) -> Outcome:
    before = Rest.of(server)
    shared = TritonTransport(server.grpc)
    world = World(server.grpc, plan.seed, time.monotonic() + plan.seconds, shared)
    outcome = Outcome(world.tally)
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(_play(world, number)) for number in range(plan.players)]
    if plan.kill_every:
        tasks.append(loop.create_task(kill_workers(world, server, plan.kill_every)))
    reporting = loop.create_task(_report(world, on_progress))
    try:
        await asyncio.gather(*tasks)
        await _after(server, before, world)
    except Violation as violation:
        outcome.violation = violation
    finally:
        for task in (*tasks, reporting):
            task.cancel()
        await asyncio.wait([*tasks, reporting])
        await shared.close()
    return outcome


async def _play(world: World, number: int) -> None:
    """One client, until the run is over; some lives take over the id of the one before."""
    random = Random(f"{world.seed}/{number}")
    previous: Life | None = None
    for count in itertools.count():
        if world.over:
            return
        life = Life(world, f"{number}/{count}", previous)
        await life.live()
        if life.ledger.refused:
            await asyncio.sleep(REFUSED_SECONDS)
        previous = life if random.random() < 0.3 else None


async def _report(world: World, on_progress: Callable[[Counter[str]], None]) -> None:
    while True:
        on_progress(world.tally)
        await asyncio.sleep(REPORT_SECONDS)


async def _after(server: ServerProcess, before: Rest, world: World) -> None:
    """Everything is given back, and the next client is served."""
    server.check_running()
    reloaded = bool(world.disturbances)
    if left := await come_to_rest(server, before, REST_SECONDS, reloaded=reloaded):
        raise Violation("the server did not come to rest: " + "; ".join(left))
    async with (
        WorldClient(server.grpc) as client,
        client.open_session(IMAGE, "a hill", max_area=AREA) as session,
    ):
        await session.send("w")
        chunk = await session.next_chunk()
        if len(chunk.frames) != 9:
            raise Violation(f"after the chaos a first chunk has {len(chunk.frames)} frames")
