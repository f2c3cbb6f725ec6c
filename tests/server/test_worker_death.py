"""Worker processes that are killed: everybody is answered, and the service comes back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from lingbot_client import WorldClient, WorldSession, errors

from lingbot_triton.simulated.stages import STALLING_SEED
from lingbot_triton.triton.server import ServerProcess
from tests.server.conftest import StartConfigured
from tests.server.play import PROMPT, eventually, picture, play, sessions
from tests.server.serving import Serve
from tests.server.stopwatch import machine_seconds
from tests.server.workers import (
    ANSWER_SECONDS,
    SMALL,
    TWO_DENOISERS,
    fate,
    kill,
    metric,
    placed,
    serves_again,
    spread,
    states,
)

SIMULATED = {"LINGBOT_SIMULATED": "seed-4xh100", "LINGBOT_SIMULATED_SCALE": "0.4"}
STAGES = ("condition", "denoise", "decode")


@pytest.fixture(scope="module")
def server(doomed_server: StartConfigured) -> ServerProcess:
    return doomed_server(environment=SIMULATED)


@pytest.fixture(scope="module")
def regions(server: ServerProcess) -> int:
    """Regions of the server's shared memory before anything was killed."""
    return len(server.regions())


async def _sessions(client: WorldClient, count: int, **options: Any) -> list[WorldSession]:
    options = SMALL | options
    opened = [client.open_session(picture(), PROMPT, **options) for _ in range(count)]
    await asyncio.gather(*(session.open() for session in opened))
    return opened


def _restarts(server: ServerProcess, stage: str) -> float:
    return metric(server, f'lingbot_worker_restarts_total{{model="{stage}"}}')


def _rejuvenated(server: ServerProcess) -> bool:
    """The regions, also of the dead, are as if they had just grown: none is removed at once."""
    for region in server.regions():
        with contextlib.suppress(FileNotFoundError):
            os.utime(region)
    return True


@contextlib.asynccontextmanager
async def _recovering(server: ServerProcess, *stages: str) -> AsyncIterator[None]:
    """The stages die inside the block; after it they are back and hold nothing of before."""
    wanted = [_restarts(server, stage) + 1 for stage in stages]
    yield
    await eventually(lambda: [_restarts(server, stage) for stage in stages] == wanted, 60)
    await serves_again(server.grpc)
    await eventually(lambda: sessions(server) == 0)
    for stage in stages:
        for words in ("has died: ending the sessions it held", "was reloaded and takes sessions"):
            await eventually(lambda line=f"{stage} {words}": line in server.output())
        await eventually(lambda stage=stage: set(states(server, stage).values()) <= {0})


@pytest.mark.parametrize(
    ("stage", "moment"),
    [
        ("condition", "prefetching"),
        ("denoise", "step"),
        ("denoise", "commit"),
        ("decode", "frames on their way"),
    ],
)
def test_killed_at_work(server: ServerProcess, regions: int, stage: str, moment: str) -> None:
    async def scenario() -> None:
        async with WorldClient(server.grpc) as client:
            # A second one's step would stand before the first one's commit.
            options = {"seed": STALLING_SEED + 3} if moment == "step" else {}
            held = await _sessions(client, 1 if moment == "commit" else 2, **options)
            # Who waits for nothing when a session ends is told of that only, not of the stage.
            for session in held:
                await session.send("w")
                await session.send("w")
            if moment == "step":  # all conditions that may be are there, so only steps are called
                await eventually(lambda: metric(server, "lingbot_conditions_alive") == 4)
                await eventually(lambda: metric(server, "lingbot_calls_in_flight") == 2)
            elif moment != "prefetching":
                await held[0].next_part()  # its commit, and the decoding of the rest, have begun
            async with _recovering(server, stage):
                kill(server, stage)
                died = machine_seconds()
                results = await asyncio.gather(*(_drained(session) for session in held))
                assert [type(error) for error in results] == [errors.StageFailed] * len(held)
                assert machine_seconds() - died < ANSWER_SECONDS
                for session in held:
                    await session.close()

    asyncio.run(scenario())


async def _drained(session: WorldSession) -> Exception | None:
    """Send what the session takes and read all that comes: the error that ends it."""
    try:
        while True:
            await session.send("w")
            await session.next_chunk()
    except errors.WorldError as error:
        return error


def test_killed_before_a_session_opens_and_sessions_that_have_their_prompt_go_on(
    server: ServerProcess,
) -> None:
    async def scenario() -> None:
        async with WorldClient(server.grpc) as client:
            (held,) = await _sessions(client, 1)
            async with _recovering(server, "prompt"):
                kill(server, "prompt")
                started = machine_seconds()
                with pytest.raises(errors.StageFailed, match="prompt"):
                    await play(client, ["w"], prompt="nobody has asked for this", **SMALL)
                assert machine_seconds() - started < ANSWER_SECONDS
                assert (await fate(held, 3))[0] is None
                await held.close()

    asyncio.run(scenario())


def test_all_killed_while_idle(server: ServerProcess, regions: int) -> None:
    """Nothing calls them, so only looking after them finds out.

    The last test of this server: of none that died in it, shared memory is left in the end.
    """

    async def scenario() -> None:
        async with WorldClient(server.grpc) as client:
            held = await _sessions(client, 2)
            await asyncio.gather(*(fate(session, 1) for session in held))
            await eventually(lambda: metric(server, "lingbot_calls_in_flight") == 0)
            before = {stage: _restarts(server, stage) for stage in STAGES}
            async with _recovering(server, *STAGES):
                for stage in STAGES:
                    kill(server, stage)
                await eventually(lambda: sessions(server) == 0, 30)
                for error, seconds in await asyncio.gather(*map(fate, held)):
                    assert error is errors.SessionFailed
                    assert seconds < ANSWER_SECONDS
                for session in held:
                    await session.close()
                # Regions, also of the dead, are as if they had just grown: none goes at once.
                await eventually(
                    lambda: (
                        _rejuvenated(server)
                        and all(_restarts(server, stage) > n for stage, n in before.items())
                    ),
                    60,
                )

        await eventually(lambda: len(server.regions()) == regions)

    asyncio.run(scenario())


def test_of_two_denoisers_the_other_goes_on(doomed_server: StartConfigured, tmp_path: Path) -> None:
    repository = placed(tmp_path, TWO_DENOISERS)
    server = doomed_server(repository=repository, environment=SIMULATED)

    async def scenario() -> None:
        async with WorldClient(server.grpc) as client:
            held = await spread(server, lambda: _sessions(client, 2))
            for session in held:
                await session.send("w")
            kill(server, "denoise", 0)
            fates = await asyncio.gather(*(fate(session, 8) for session in held))
            assert sorted(str(error) for error, _ in fates) == [
                str(errors.StageFailed),
                "None",
            ]
            going = held[[error for error, _ in fates].index(None)]
            # New sessions go where somebody is alive, and the reload waits for all of them.
            chunks = await asyncio.gather(*(play(client, ["w"], **SMALL) for _ in range(3)))
            assert [len(each) for each in chunks] == [1, 1, 1]
            assert (await fate(going, 2))[0] is None
            assert _restarts(server, "denoise") == 0
            for session in held:
                await session.close()
            await eventually(lambda: states(server, "denoise").get("denoise_0_0") == 0, 60)
            await _sessions_everywhere(server, client)

    asyncio.run(scenario())


async def _sessions_everywhere(server: ServerProcess, client: WorldClient) -> None:
    await serves_again(server.grpc)
    for session in await spread(server, lambda: _sessions(client, 2)):
        await session.close()


def test_without_explicit_control_new_sessions_are_told_why(
    doomed_server: StartConfigured,
) -> None:
    server = doomed_server(environment=SIMULATED, reloads_workers=False)

    async def scenario() -> None:
        async with WorldClient(server.grpc) as client:
            (held,) = await _sessions(client, 1)
            await held.send("w")
            kill(server, "decode")
            error, seconds = await fate(held)
            assert error is errors.StageFailed
            assert seconds < ANSWER_SECONDS
            await held.close()
            await eventually(lambda: "could not be reloaded" in server.output(), 30)
            with pytest.raises(
                errors.StageFailed,
                match="decode has died and could not be reloaded: this needs tritonserver --model-",
            ):
                await play(client, ["w"], **SMALL)

    asyncio.run(scenario())


def test_serve_starts_a_server_again_whose_orchestrator_died(serve: Serve) -> None:
    async def scenario() -> None:
        async with WorldClient(serve.grpc) as client:
            held = client.open_session(picture(), PROMPT, **SMALL)
            await held.open()
            os.kill(serve.process("orchestrator"), signal.SIGKILL)
            error, _ = await fate(held)
            assert error is not None
            await held.close()
        await serves_again(serve.grpc)
        serve.look()

    asyncio.run(scenario())
    serve.stop(signal.SIGTERM)
    assert "the process of model orchestrator died" in serve.errors
    assert "it is started again in 0 s" in serve.errors
    assert serve.everything_gone()
