"""Workers that stop answering: their sessions end, nobody else waits, and they come back clean."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest
from lingbot_client import WorldClient, WorldSession, errors

from lingbot_triton.simulated.stages import STALLING_SEED
from lingbot_triton.triton.server import ServerProcess
from tests.server.conftest import StartConfigured
from tests.server.play import PROMPT, admitted, eventually, picture, play, sessions
from tests.server.stopwatch import machine_seconds
from tests.server.workers import SMALL, TWO_DENOISERS, metric, placed, spread, states, stopped

TIMEOUT = 3.0
LATE, LATER = 8, 11
"""Seconds that a denoiser stalls: still when its session has ended, and when others gave up."""
SETTINGS = {
    "LINGBOT_SIMULATED": "seed-4xh100",
    "LINGBOT_SIMULATED_SCALE": "0.05",
    "LINGBOT_STAGE_TIMEOUT_SECONDS": str(TIMEOUT),
    "LINGBOT_MAX_SESSIONS": "8",
}

DENOISED = 'lingbot_stage_seconds_count{stage="denoise"}'


@pytest.fixture(scope="module")
def server(
    doomed_server: StartConfigured, tmp_path_factory: pytest.TempPathFactory
) -> ServerProcess:
    """Two instances of denoise, one of every other model."""
    repository = placed(tmp_path_factory.mktemp("placed"), TWO_DENOISERS)
    return doomed_server(repository=repository, environment=SETTINGS)


async def _open(client: WorldClient, count: int) -> list[WorldSession]:
    opened = [client.open_session(picture(), PROMPT, **SMALL) for _ in range(count)]
    for session in opened:
        await session.open()
    return opened


async def _ends(session: WorldSession) -> errors.WorldError | None:
    """Play on until the session ends, or for ten chunks: the error that ended it."""
    try:
        for _ in range(10):
            await session.send("w")
            await session.next_chunk()
    except errors.WorldError as error:
        return error
    return None


async def _all_clean(server: ServerProcess) -> None:
    """No session, no state in any worker, and no call on its way."""
    await eventually(lambda: sessions(server) == 0, 60)
    for stage in ("condition", "denoise", "decode"):
        await eventually(lambda stage=stage: set(states(server, stage).values()) == {0})
    await eventually(lambda: metric(server, "lingbot_calls_in_flight") == 0)


async def _close(held: Sequence[WorldSession]) -> None:
    await asyncio.gather(*(session.close() for session in held))


async def _stalled(client: WorldClient, seconds: int) -> WorldSession:
    """An open session whose denoiser is busy for so long with every chunk."""
    session = client.open_session(picture(), PROMPT, seed=STALLING_SEED + seconds, **SMALL)
    await session.open()
    return session


def test_a_call_that_takes_too_long_ends_its_session_and_its_answer_is_dropped(
    server: ServerProcess,
) -> None:
    async def scenario() -> None:
        async with WorldClient(server.grpc) as client:
            session = await _stalled(client, LATE)
            started, running = time.monotonic(), machine_seconds()
            await session.send("w")
            late = f"denoise took longer than {TIMEOUT:g} s"
            with pytest.raises(errors.StageTimeout, match=late):
                await session.next_chunk()
            assert time.monotonic() - started >= TIMEOUT
            assert machine_seconds() - running < TIMEOUT + 2
            await session.close()
            assert machine_seconds() - running < LATE, "END does not wait for the worker"
            closing = 'lingbot_sessions{state="closing"}'
            await eventually(lambda: metric(server, closing) == 1)  # which still holds the session
            again = client.open_session(
                picture(), PROMPT, sequence_id=session.id, token=session.token, **SMALL
            )
            await again.open()  # on the other instance
            assert await _ends(again) is None
            await again.close()
        await _all_clean(server)
        assert metric(server, 'lingbot_worker_restarts_total{model="denoise"}') == 0

    asyncio.run(scenario())


def test_sessions_on_the_other_instance_are_untouched(server: ServerProcess) -> None:
    """Though as many sessions as there may be wait for the one that is busy."""

    async def scenario() -> None:
        async with WorldClient(server.grpc) as client:

            async def one_stalled() -> list[WorldSession]:
                return [await _stalled(client, LATER), *await _open(client, 7)]

            stalled, *held = await spread(server, one_stalled)
            await stalled.send("w")
            await admitted(stalled)
            ends = await asyncio.gather(*map(_ends, [stalled, *held]))
            assert sorted(str(error) for error in ends) == [
                *["None"] * 4,
                *[f"denoise took longer than {TIMEOUT:g} s"] * 4,
            ]
            going = [one for one, end in zip(held, ends[1:], strict=True) if end is None]
            assert await asyncio.gather(*map(_ends, going)) == [None] * 4
            await _close([stalled, *held])
            await _all_clean(server)
            held = await spread(server, lambda: _open(client, 8))
            assert await asyncio.gather(*map(_ends, held)) == [None] * 8
            await _close(held)
        await _all_clean(server)

    asyncio.run(scenario())


def test_a_worker_that_goes_on_in_time_is_not_missed(server: ServerProcess) -> None:
    async def scenario() -> None:
        async with WorldClient(server.grpc) as client:
            (session,) = await _open(client, 1)
            with stopped(server, "decode"):
                before = metric(server, DENOISED)
                await session.send("w")
                await eventually(lambda: metric(server, DENOISED) > before)  # now it is called
            assert len((await session.next_chunk()).frames) == 9
            await session.close()
        await _all_clean(server)

    asyncio.run(scenario())


@pytest.mark.parametrize("stage", ["condition", "decode"])
def test_a_process_that_is_stopped_is_replaced(server: ServerProcess, stage: str) -> None:
    """Triton gives it up within two seconds, so its late answers must never come.

    The last test here: after such a death Triton takes its time to stop.
    """

    async def scenario() -> None:
        restarts = f'lingbot_worker_restarts_total{{model="{stage}"}}'
        async with WorldClient(server.grpc) as client:
            held = await _open(client, 2)
            for session in held:  # who waits for nothing would be told of the session only
                await session.send("w")
                await session.send("w")
            with stopped(server, stage):
                started = machine_seconds()
                ends = await asyncio.gather(*map(_ends, held))
                assert [type(error) for error in ends] == [errors.StageFailed] * 2
                assert machine_seconds() - started < 5
                await eventually(lambda: metric(server, restarts) == 1, 60)
            await _close(held)
            chunks = await asyncio.gather(*(play(client, ["w", "l"], **SMALL) for _ in range(2)))
            assert [len(each) for each in chunks] == [2, 2]
        await _all_clean(server)

    asyncio.run(scenario())
