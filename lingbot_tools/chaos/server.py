"""The server's side of a run: workers are killed, and afterwards everything is as it was before."""

from __future__ import annotations

import asyncio
import math
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from lingbot_tools.chaos.world import Violation, World
from lingbot_triton import metrics
from lingbot_triton.stage import STAGES
from lingbot_triton.triton.scrape import scrape, total
from lingbot_triton.triton.server import ServerProcess

EMPTY = (
    metrics.SESSIONS,
    metrics.WORKER_STATES,
    metrics.CALLS,
    metrics.CONDITIONS,
    metrics.CONDITION_BYTES,
)
"""Metrics that are zero while there is no session."""

NEVER_SAID = re.compile(
    r"internal error|never retrieved|destroyed but it is pending|Segmentation|Traceback"
)
POLL_SECONDS = 0.25
RELOAD_SECONDS = 60.0
CALM_SECONDS = 2.0
"""How long after a reload sessions may still end with what the death has caused."""


@dataclass(frozen=True)
class Rest:
    """The server's processes and shared memory."""

    processes: frozenset[int]
    models: frozenset[str]
    regions: frozenset[str]

    @classmethod
    def of(cls, server: ServerProcess) -> Rest:
        return cls(
            frozenset(server.processes()),
            frozenset(server.model_processes()),
            frozenset(path.name for path in server.regions()),
        )

    def differences(self, now: Rest, *, reloaded: bool) -> Iterator[str]:
        """What is not as it was; reloaded workers have other ids, but not more of them."""
        for name in ("processes", "models", "regions"):
            before, after = getattr(self, name), getattr(now, name)
            same = len(before) == len(after) if reloaded and name != "models" else before == after
            if not same:
                yield f"{name} were {sorted(before)} and are {sorted(after)}"


async def come_to_rest(
    server: ServerProcess, before: Rest, seconds: float, *, reloaded: bool
) -> list[str]:
    """Wait until the server is as it was; returns what is not so after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        series = await asyncio.to_thread(scrape, server.metrics)
        left = [
            f"{family.name} is {value:g}, not 0"
            for family in EMPTY
            if (value := total(series, family.name))
        ]
        left += before.differences(Rest.of(server), reloaded=reloaded)
        if not left or time.monotonic() > deadline:
            return left
        await asyncio.sleep(POLL_SECONDS)


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
    return total(await asyncio.to_thread(scrape, server.metrics), metrics.RESTARTS.name)
