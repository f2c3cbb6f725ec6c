"""What tests do to worker processes, and how they see what became of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner
from lingbot_client import WorldClient, WorldSession, errors
from tritonclient.grpc import InferenceServerException

from lingbot_triton.triton import render
from lingbot_triton.triton.scrape import scrape
from lingbot_triton.triton.server import SHARED_MEMORY, ServerProcess
from lingbot_triton.triton.system import command_line
from tests.server.play import eventually, play
from tests.server.stopwatch import machine_seconds

SMALL: dict[str, Any] = {"max_area": 64 * 96, "chunk_count": 200}
ANSWER_SECONDS = 5.0
"""Of the machine's: by then a client knows of a worker that died."""
TWO_DENOISERS = "[denoise]\ncount = 2\n"


def worker(server: ServerProcess, instance: str) -> int:
    """Process id of a model instance, `denoise_0_0` and the like."""
    (pid,) = [pid for pid in server.processes() if instance in command_line(pid)]
    return pid


def kill(server: ServerProcess, stage: str, number: int = 0) -> None:
    os.kill(worker(server, f"{stage}_0_{number}"), signal.SIGKILL)


@contextlib.contextmanager
def stopped(server: ServerProcess, stage: str, number: int = 0) -> Iterator[int]:
    """The worker, whose process id is given, does nothing inside the block, and goes on after."""
    pid = worker(server, f"{stage}_0_{number}")
    os.kill(pid, signal.SIGSTOP)
    try:
        yield pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def states(server: ServerProcess, stage: str) -> dict[str, float]:
    """Sessions that each instance of a stage holds, `denoise_0_0` and the like."""
    family = "lingbot_worker_states"
    return {
        name.split('"')[1]: value
        for name, value in scrape(server.metrics).items()
        if name.startswith(f'{family}{{instance="{stage}_')
    }


def metric(server: ServerProcess, name: str) -> float:
    return scrape(server.metrics).get(name, 0.0)


def placed(folder: Path, placement: str) -> Path:
    """A model repository of this placement (TOML) in `folder`."""
    (folder / "placement.toml").write_text(placement)
    arguments = ["--placement", str(folder / "placement.toml"), "--out", str(folder / "models")]
    result = CliRunner().invoke(render.main, arguments)
    assert result.exit_code == 0, result.output
    return folder / "models"


async def spread(
    server: ServerProcess,
    open_sessions: Callable[[], Awaitable[list[WorldSession]]],
) -> list[WorldSession]:
    """Sessions of which both denoisers hold equally many.

    An instance that answers a ping of the orchestrator's when a session opens gets it later than
    its turn: then all are opened again.
    """
    for _ in range(3):
        held = await open_sessions()
        count = len(held)
        await eventually(lambda count=count: sum(states(server, "denoise").values()) == count)
        if states(server, "denoise") == {f"denoise_0_{n}": count / 2 for n in range(2)}:
            return held
        await asyncio.gather(*(session.close() for session in held))
        await eventually(lambda: not any(states(server, "denoise").values()))
    raise AssertionError("three times sessions were not spread evenly")


async def fate(session: WorldSession, controls: int = 2) -> tuple[type[Exception] | None, float]:
    """Play on until something goes wrong: what, and after how many of the machine's seconds."""
    started = machine_seconds()
    try:
        for _ in range(controls):
            await session.send("w")
            await session.next_chunk()
    except errors.WorldError as error:
        return type(error), machine_seconds() - started
    return None, machine_seconds() - started


async def serves_again(grpc: str, seconds: float = 180.0) -> float:
    """Open and play a session as soon as the server takes one; seconds that took.

    Each try has a connection of its own: one that failed waits longer and longer for the next.
    """
    started = time.monotonic()
    last: errors.WorldError | None = None
    while time.monotonic() - started < seconds:
        try:
            async with WorldClient(grpc) as client:
                (chunk,) = await play(client, ["w"], **SMALL)
        except errors.WorldError as error:
            last = error
            await asyncio.sleep(0.2)
        else:
            assert len(chunk.frames) == 9
            return time.monotonic() - started
    raise AssertionError(f"after {seconds} s still: {last}")


def orphaned_regions() -> set[str]:
    """Names of shared-memory regions of servers that live no more; other tests' servers do."""
    living = _region_prefixes()
    regions = {path.name for path in SHARED_MEMORY.glob("lingbot-*")}
    living |= _region_prefixes()  # a server may have started meanwhile
    orphans = {name for name in regions if not name.startswith(tuple(living))}
    return {name for name in orphans if (SHARED_MEMORY / name).exists()}


def _region_prefixes() -> set[str]:
    """What the names of living servers' regions start with."""
    prefixes = set()
    for process in psutil.process_iter(["cmdline"]):
        for argument in process.info["cmdline"] or ():
            _, found, prefix = argument.partition("shm-region-prefix-name=")
            if found:
                prefixes.add(prefix)
    return prefixes


def call_worker(
    client: Any,
    model: str,
    secret: Any = "guess",
    parameters: dict[str, Any] | None = None,
    **arguments: Any,
) -> str:
    """Call a worker as the orchestrator does; the error that it answers with."""
    proof = {} if secret is None else {"secret": secret}
    with pytest.raises(InferenceServerException) as caught:
        client.infer(model, [], parameters=(parameters or {}) | proof, **arguments)
    return str(caught.value)
