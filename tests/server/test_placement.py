"""Several instances of a stage: sessions spread over them, and share nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from lingbot_client import WorldClient, WorldSession, errors

from lingbot_triton.triton import render
from lingbot_triton.triton.scrape import scrape
from lingbot_triton.triton.server import ServerConfig, ServerError, ServerProcess
from tests.server.conftest import StartServer
from tests.server.play import PROMPT, eventually, picture, play, video
from tests.server.workers import ANSWER_SECONDS, SMALL, fate, kill, serves_again

PLACEMENT = render.REPOSITORY.parent / "examples" / "placement" / "2-cpu.toml"
SEEDS = (1, 2, 3, 4)
KEYS = ("wl", "sai")
SIMULATED = {"LINGBOT_SIMULATED": "seed-4xh100"}


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with two instances of denoise on the CPU."""
    folder = tmp_path_factory.mktemp("placed")
    repository = folder / "models"
    arguments = ["--placement", str(PLACEMENT), "--out", str(repository)]
    result = CliRunner().invoke(render.main, arguments)
    assert result.exit_code == 0, result.output
    # Sums are rounded differently by other numbers of threads, so both servers have the same.
    config = ServerConfig(
        repository=repository, environment={"LINGBOT_THREADS": "1"}, log=folder / "log"
    )
    with ServerProcess(config) as server:
        yield server
    assert server.processes() == []


@pytest.fixture(scope="module")
def alone(shared_server: StartServer) -> dict[int, np.ndarray[Any, Any]]:
    """Frames by seed, of sessions alone on the server of the default placement."""
    server = shared_server(condition_cache_bytes=0)

    async def scenario() -> dict[int, np.ndarray[Any, Any]]:
        async with WorldClient(server.grpc) as client:
            return {seed: video(await play(client, KEYS, seed=seed)) for seed in SEEDS}

    return asyncio.run(scenario())


def held(server: ServerProcess, stage: str) -> list[float]:
    """Sessions that each instance of a stage holds."""
    prefix = f'lingbot_worker_states{{instance="{stage}_'
    return [value for name, value in scrape(server.metrics).items() if name.startswith(prefix)]


def test_sessions_spread_and_each_equals_itself_alone(
    placed: ServerProcess, alone: dict[int, np.ndarray[Any, Any]]
) -> None:
    async def open_session(client: WorldClient, seed: int) -> WorldSession:
        session = client.open_session(picture(), PROMPT, seed=seed)
        await session.open()
        return session

    async def steer(session: WorldSession) -> np.ndarray[Any, Any]:
        chunks = []
        for keys in KEYS:
            await session.send(keys)
            chunks.append(await session.next_chunk())
        await session.close()
        return video(chunks)

    async def scenario() -> None:
        async with WorldClient(placed.grpc) as client:
            opened = await asyncio.gather(*(open_session(client, seed) for seed in SEEDS))
            await eventually(lambda: held(placed, "denoise") == [2, 2])
            await eventually(lambda: held(placed, "decode") == [4])
            frames = await asyncio.gather(*map(steer, opened))
        for seed, seen in zip(SEEDS, frames, strict=True):
            np.testing.assert_array_equal(seen, alone[seed])

    asyncio.run(scenario())


def test_instances_are_empty_when_their_sessions_have_ended(placed: ServerProcess) -> None:
    async def scenario() -> None:
        async with WorldClient(placed.grpc) as client:
            await asyncio.gather(*(play(client, ("w",), seed=seed) for seed in SEEDS))
        for stage in ("condition", "denoise", "decode"):
            await eventually(lambda stage=stage: not any(held(placed, stage)))

    asyncio.run(scenario())


@pytest.mark.parametrize(("stage", "instances"), [("decode", 1), ("denoise", 2)])
def test_workers_that_die_are_back_with_their_weights(
    placed: ServerProcess, stage: str, instances: int
) -> None:
    """The last test of this server: all instances of a stage die."""

    async def scenario() -> None:
        async with WorldClient(placed.grpc) as client:
            session = client.open_session(picture(), PROMPT, **SMALL)
            await session.open()
            assert (await fate(session, 1))[0] is None
            await session.send("w")
            for number in range(instances):
                kill(placed, stage, number)
            error, seconds = await fate(session)
            assert error is errors.StageFailed
            assert seconds < ANSWER_SECONDS
            await session.close()
            await serves_again(placed.grpc)

    asyncio.run(scenario())


def test_a_gpu_that_is_not_there_is_named(tmp_path: Path) -> None:
    placement = tmp_path / "gpu.toml"
    placement.write_text('[denoise]\ndevices = ["cuda:99"]\n')
    repository = tmp_path / "models"
    CliRunner().invoke(render.main, ["--placement", str(placement), "--out", str(repository)])
    server = ServerProcess(ServerConfig(repository=repository, environment=SIMULATED))
    with pytest.raises(ServerError, match=r"model denoise: .* gpu id 99"), server:
        pass
    assert server.processes() == []
