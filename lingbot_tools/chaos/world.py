"""What all players of one run share: the server, its disturbances, and the tally."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from lingbot_client.triton import TritonTransport

RESPONSE_SECONDS = 60.0
"""After so long without its final response a request counts as forgotten."""

IDLE_SECONDS = 3.0
"""After so long without anything to do the server ends a session."""

PROFILE = "seed-4xh100"
WINDOW = 2
"""`control_window` of the server."""


class Violation(Exception):
    """A broken promise, with what led to it."""

    def __init__(self, sentence: str, where: str = "", history: list[str] | None = None) -> None:
        super().__init__(sentence)
        self.where = where
        self.history = history or []


@dataclass
class World:
    """The server as the players see it."""

    url: str
    seed: int
    deadline: float
    shared: TritonTransport
    """A connection that lasts for the whole run."""
    tally: Counter[str] = field(default_factory=Counter)
    disturbances: list[tuple[float, float]] = field(default_factory=list)
    """When workers were dead or being reloaded: from, until."""

    @property
    def over(self) -> bool:
        return time.monotonic() > self.deadline

    def disturbed(self, since: float) -> bool:
        """Whether a worker was unavailable at any time from `since` until now."""
        return any(until >= since for _, until in self.disturbances)
