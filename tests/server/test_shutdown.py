"""Stopping a server with sessions on it: everybody is answered, and nothing is left."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from lingbot_client import WorldClient, WorldSession, errors

from lingbot_triton.simulated.stages import STALLING_SEED
from lingbot_triton.triton.server import Leftovers, ServerProcess
from tests.server.conftest import StartConfigured
from tests.server.play import PROMPT, admitted, eventually, picture
from tests.server.serving import Serve
from tests.server.workers import SMALL

UNGRACEFUL = ("Exit timeout expired", "Non-graceful termination")


async def _play_until_it_ends(session: WorldSession) -> tuple[int, errors.WorldError]:
    """Steer on and on: chunks that arrived whole, and what ended the session."""
    whole = 0
    try:
        while True:
            await session.send("w")
            await session.next_chunk()
            whole += 1
    except errors.WorldError as error:
        return whole, error


@pytest.mark.parametrize(
    ("number", "scale"),
    [(signal.SIGTERM, 0.3), (signal.SIGINT, 1.5)],
    ids=["SIGTERM, short chunks", "Ctrl-C, long chunks"],
)
def test_a_signal_while_sessions_are_busy(number: int, scale: float) -> None:
    """Chunks take 0.4 s, or more than the grace time."""
    busy = Serve(["--simulated=seed-4xh100", f"--scale={scale}", "--log-level=info"])
    try:
        asyncio.run(_stop_while_busy(busy, number))
    finally:
        busy.end()
    assert busy.program.returncode == 0
    assert busy.everything_gone()
    assert not [words for words in UNGRACEFUL if words in busy.errors]
    assert busy.errors.count('\\"reason\\": \\"shutdown\\"') == 3


async def _stop_while_busy(busy: Serve, number: int) -> None:
    async with WorldClient(busy.grpc) as client:
        held = [client.open_session(picture(), PROMPT, **SMALL) for _ in range(3)]
        for session in held:
            await session.open()
        for session in held[:2]:
            await session.send("w")
            await admitted(session)  # two are busy, one is open and idle
        players = [asyncio.ensure_future(_play_until_it_ends(session)) for session in held[:2]]
        await asyncio.to_thread(busy.stop, number)
        ends = await asyncio.gather(*players)
    # The chunk under way is finished within the grace time, or refused; then comes the end.
    gone = (errors.ShuttingDown, errors.SessionFailed, errors.ConnectionFailed)
    assert [isinstance(error, gone) for _, error in ends] == [True, True], ends
    assert errors.ShuttingDown in [type(error) for _, error in ends]


def test_a_stopped_server_has_released_everything_by_itself(
    doomed_server: StartConfigured,
) -> None:
    server: ServerProcess = doomed_server(
        environment={"LINGBOT_SIMULATED": "seed-4xh100", "LINGBOT_SIMULATED_SCALE": "1"},
        exit_timeout_seconds=30,
    )

    async def scenario() -> None:
        async with WorldClient(server.grpc) as client:
            session = client.open_session(picture(), PROMPT, **SMALL)
            await session.open()
            await session.send("w")
            await admitted(session)
            stopping = asyncio.ensure_future(asyncio.to_thread(server.stop, 40.0, 20.0))
            assert len((await session.next_chunk()).frames) == 9, "it was accepted before"
            assert await stopping == Leftovers()

    asyncio.run(scenario())
    assert not [words for words in UNGRACEFUL if words in server.output()]
    assert '\\"reason\\": \\"shutdown\\"' in server.output()


def test_a_killed_server_leaves_no_process_and_no_shared_memory(
    doomed_server: StartConfigured,
) -> None:
    """Its models wait for answers that never come, and nobody is there to clear up."""
    server: ServerProcess = doomed_server(
        environment={"LINGBOT_SIMULATED": "seed-4xh100", "LINGBOT_SIMULATED_SCALE": "1"},
    )

    async def scenario() -> None:
        async with WorldClient(server.grpc) as client:
            stalling = {"seed": STALLING_SEED + 5, **SMALL}
            session = client.open_session(picture(), PROMPT, **stalling)
            await session.open()
            await session.send("w")
            await admitted(session)
            assert len(server.regions()) > 3
            os.kill(server.pid, signal.SIGKILL)
            with pytest.raises(errors.ConnectionFailed):
                await session.next_chunk()
            await eventually(lambda: not server.processes() and not server.regions(), 30)

    asyncio.run(scenario())
