"""Kills workers, one at a time, and waits for each to come back."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from random import Random

from lingbot_tools.chaos.world import Violation, World
from lingbot_triton.metrics import RESTARTS
from lingbot_triton.stage import STAGES
from lingbot_triton.triton.scrape import scrape, total
from lingbot_triton.triton.server import ServerProcess

RELOAD_SECONDS = 60.0
CALM_SECONDS = 2.0
"""How long after a reload sessions may still end with what the death has caused."""


async def kill_workers(world: World, server: ServerProcess, every: float) -> None:
    """Kill a worker about `every` seconds until the run is nearly over."""
    random = Random(f"{world.seed}/kill")
    while True:
        await asyncio.sleep(every * (0.5 + random.random()))
        if time.monotonic() + every > world.deadline:
            return
        await kill_worker(world, server, random.choice([spec.name for spec in STAGES]))


async def kill_worker(world: World, server: ServerProcess, model: str) -> None:
    """Kill one worker and return when it serves again; raises Violation if it never does."""
    before = await _restarts(server)
    victim = server.model_processes()[model]
    killed_at = time.monotonic()
    world.disturbances.append((killed_at, math.inf))
    world.tally[f"killed {model}"] += 1
    os.kill(victim, signal.SIGKILL)
    while await _restarts(server) == before or server.model_processes().get(model) == victim:
        await asyncio.sleep(0.1)
        if time.monotonic() > killed_at + RELOAD_SECONDS:
            raise Violation(f"{model} was killed and not back after {RELOAD_SECONDS:g} s")
    world.disturbances[-1] = (killed_at, time.monotonic() + CALM_SECONDS)


async def _restarts(server: ServerProcess) -> float:
    return total(await asyncio.to_thread(scrape, server.metrics), RESTARTS.name)
