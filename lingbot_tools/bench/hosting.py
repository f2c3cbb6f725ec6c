"""The server that is measured: one of our own on free ports, or a running one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lingbot_client import WorldClient
from lingbot_client.picture import default_picture

from lingbot_triton.settings import EMBEDDED_CHECKPOINT, Settings
from lingbot_triton.triton.foreground import foreground
from lingbot_triton.triton.render import REPOSITORY
from lingbot_triton.triton.serve import variables
from lingbot_triton.triton.server import ServerConfig, ServerError

TINY = "tiny"
"""Name of the checkpoint that comes with the package."""

MAX_LOG_LINES, MAX_LINE_LENGTH = 4, 1000
"""How many errors of the server's log a report shows, and how much of each."""


@dataclass(frozen=True)
class Target:
    """Addresses of the server; metrics is empty where it is not ours and was not named."""

    grpc: str
    metrics: str = ""
    output: Callable[[], str] = lambda: ""
    """The last lines that the server wrote, where it is ours."""

    def explain(self, errors: list[str]) -> list[str]:
        """`errors`, and after them the last errors of the server's own log."""
        lines = re.findall(rf"^E\d{{4}} .{{0,{MAX_LINE_LENGTH - 6}}}", self.output(), re.MULTILINE)
        return [*errors, *(f"server: {line}" for line in lines[-MAX_LOG_LINES:])] if errors else []


@dataclass(frozen=True)
class Stages:
    """What the workers do: sleep as long as a cost profile says, or compute with a checkpoint."""

    profile: str = ""
    scale: float = 1.0
    checkpoint: str | None = None

    def environment(self, **settings: object) -> dict[str, str]:
        """Environment of a server with such stages."""
        if self.checkpoint:
            path = EMBEDDED_CHECKPOINT if self.checkpoint == TINY else Path(self.checkpoint)
            return variables(settings | {"simulated": "", "checkpoint": path})
        return variables(settings | {"simulated": self.profile, "simulated_scale": self.scale})

    @property
    def simulated(self) -> str:
        """What a report says is simulated."""
        if self.checkpoint:
            device = Settings.load().device
            where = "a GPU if there is one, else the CPU" if device == "auto" else device
            return f"nothing; the stages compute with the checkpoint {self.checkpoint!r} on {where}"
        return (
            f"the stages: each sleeps for the cost of profile {self.profile!r} times "
            f"{self.scale:g} and makes tensors of the real size; all else is real"
        )


@contextmanager
def serving(
    url: str | None, environment: dict[str, str], repository: Path = REPOSITORY
) -> Iterator[Target]:
    """The server at `url`, or else a fresh one, which is stopped at the end whatever happens.

    Raises ServerError when the fresh one does not start, or has died meanwhile, or when a running
    one does not compute what `environment` says; and KeyboardInterrupt on every signal that would
    end this process.
    """
    if url is not None:
        asyncio.run(_check_kind(url, environment["LINGBOT_SIMULATED"]))
        yield Target(url)
        return
    with foreground(ServerConfig(repository=repository, environment=environment)) as server:
        yield Target(server.grpc, server.metrics, server.output)
        server.check_running()


async def _check_kind(url: str, profile: str) -> None:
    """Raise ServerError where a report would call simulated what computes, or the reverse."""
    async with (
        WorldClient(url) as client,
        client.open_session(
            default_picture(), "a meadow", chunk_count=1, max_area=64 * 96
        ) as session,
    ):
        model, simulated = str(session.ready["model"]), bool(session.ready["simulated"])
    if simulated and not profile:
        raise ServerError(f"the server at {url} is {model}: it has no weights, and no --checkpoint")
    if profile and model != f"simulated {profile}":
        raise ServerError(f"the server at {url} is {model}: say so with --profile or --checkpoint")
