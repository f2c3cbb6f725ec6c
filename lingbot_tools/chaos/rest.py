"""The server at rest: what must be there and what must not, before and after."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

from lingbot_triton import metrics
from lingbot_triton.triton.scrape import scrape, total
from lingbot_triton.triton.server import ServerProcess

EMPTY = (
    metrics.SESSIONS,
    metrics.WORKER_STATES,
    metrics.CALLS,
    metrics.CONDITIONS,
    metrics.CONDITION_BYTES,
)
"""Families that are zero when nobody is there."""

NEVER_SAID = re.compile(
    r"internal error|never retrieved|destroyed but it is pending|Segmentation|Traceback"
)
POLL_SECONDS = 0.25


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
