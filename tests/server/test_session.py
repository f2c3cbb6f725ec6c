"""The public protocol on a real server, with simulated stages that take a little time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from lingbot_client import WorldClient, errors

from lingbot_triton.simulated.marks import Mark, fingerprint, read_mark
from lingbot_triton.simulated.stages import STALLING_SEED
from lingbot_triton.triton.scrape import scrape
from lingbot_triton.triton.server import ServerProcess
from lingbot_triton.world.geometry import Geometry
from tests.server.conftest import StartServer
from tests.server.play import (
    admitted,
    encoded,
    eventually,
    picture,
    play,
    reported,
    sessions,
)

SIMULATED: dict[str, str | float] = {"simulated": "seed-4xh100", "simulated_scale": 0.05}
START: dict[str, Any] = {"start": True, "image": encoded(picture()), "prompt": "a hill"}
SMALL = {"max_area": 64 * 96}


@pytest.fixture(scope="module")
def server(shared_server: StartServer) -> ServerProcess:
    return shared_server(max_sessions=4, **SIMULATED)


def statuses(answers: list[Any]) -> list[str]:
    return [answer.status for answer in answers]


def test_frames_come_in_order_and_from_the_right_session(server: ServerProcess) -> None:
    async def one(client: WorldClient, seed: int) -> None:
        chunks = await play(client, ["w"] * 6, ahead=2, seed=seed, **SMALL)
        frames = [frame for chunk in chunks for frame in chunk.frames]
        marks = [read_mark(frame) for frame in frames]
        expected = [0] * 9 + [chunk for chunk in range(1, 6) for _ in range(12)]
        assert marks == [
            Mark(fingerprint(seed), chunk, index) for index, chunk in enumerate(expected)
        ]

    async def scenario() -> None:
        async with WorldClient(server.grpc) as client:
            await asyncio.gather(*(one(client, seed) for seed in range(4)))

    asyncio.run(scenario())


def test_ready_tells_geometry_limits_and_that_it_is_simulated(server: ServerProcess) -> None:
    async def scenario() -> None:
        async with (
            WorldClient(server.grpc) as client,
            client.open_session(picture(1920, 1080), "a hill", seed=7) as session,
        ):
            ready = session.ready
            assert (ready["width"], ready["height"]) == (832, 464)
            assert (ready["simulated"], ready["model"]) == (True, "simulated seed-4xh100")
            assert (ready["first_chunk_frames"], ready["chunk_frames"]) == (9, 12)
            assert (ready["prefetch_depth"], ready["control_window"]) == (2, 2)
            assert ready["options"]["seed"] == 7

    asyncio.run(scenario())


@pytest.mark.parametrize("session_id", [7, "seven"], ids=["int", "str"])
def test_one_request_opens_steers_and_closes(server: ServerProcess, session_id: int | str) -> None:
    async def scenario() -> None:
        async with WorldClient(server.grpc) as client:
            answers = await client.request(session_id, end=True, chunk_index=0, keys=["w"], **START)
            assert statuses(answers) == ["READY", "FRAMES", "FRAMES", "FRAMES", "CLOSED"]
            assert [len(answer.frames) for answer in answers] == [0, 1, 4, 4, 0]
            assert answers[-1].info["frames"] == 9
            with pytest.raises(errors.NoSession, match="START"):
                await client.request(session_id, chunk_index=1, keys=["w"])

    asyncio.run(scenario())


def test_order_is_strict_and_errors_do_no_harm(server: ServerProcess) -> None:
    async def scenario() -> None:
        async with (
            WorldClient(server.grpc) as client,
            client.open_session(picture(), "a hill", **SMALL) as session,
        ):
            await session.send("w")
            await session.next_chunk()
            for index, code, sentence in (
                (0, "DUPLICATE", "chunk 0 was admitted before; the next is 1"),
                (2, "OUT_OF_ORDER", "chunk 2 is not next; the next is 1"),
                (-1, "BAD_REQUEST", "chunk_index is -1; it must not be negative"),
            ):
                (answer,) = await session.request(chunk_index=index, keys=["w"])
                assert (answer.status, answer.message) == (code, sentence)
            await session.send("l")
            chunk = await session.next_chunk()
            assert (chunk.chunk_index, chunk.frame_index, chunk.keys) == (1, 9, "l")

    asyncio.run(scenario())


def test_a_third_control_ahead_finds_the_window_full(server: ServerProcess) -> None:
    height, width = Geometry.fit(64, 96, SMALL["max_area"]).latent

    def conditions_are_held() -> bool:
        found = scrape(server.metrics)
        held = found["lingbot_condition_bytes"] == 2 * 20 * 3 * height * width * 4
        return held and found['lingbot_sessions{state="open"}'] == 1

    async def scenario() -> None:
        # Of the session before, which the same server held, the gauges may still speak.
        await eventually(lambda: scrape(server.metrics)["lingbot_condition_bytes"] == 0)
        async with (
            WorldClient(server.grpc) as client,
            client.open_session(picture(), "a hill", seed=STALLING_SEED + 2, **SMALL) as session,
        ):
            # Once its condition is there, chunk 0's denoise begins before control 1 is looked at.
            await eventually(conditions_are_held)
            controls = [session.request(chunk_index=index, keys=["w"]) for index in range(5)]
            answers = [statuses(each)[0] for each in await asyncio.gather(*controls)]
            assert answers == ["FRAMES"] * 3 + ["WINDOW_FULL", "OUT_OF_ORDER"]
            assert statuses(await session.request(chunk_index=3)) == ["FRAMES"] * 3

    asyncio.run(scenario())


def test_a_session_ends_at_its_chunk_count(server: ServerProcess) -> None:
    async def scenario() -> None:
        async with (
            WorldClient(server.grpc) as client,
            client.open_session(picture(), "a hill", chunk_count=2, **SMALL) as session,
        ):
            for _ in range(2):
                await session.send("w")
                await session.next_chunk()
            await session.send("w")
            with pytest.raises(errors.LengthLimit, match="past the session's last chunk, 1"):
                await session.next_chunk()

    asyncio.run(scenario())


def test_one_session_too_many_is_refused(server: ServerProcess) -> None:
    async def scenario() -> None:
        async with WorldClient(server.grpc) as client:
            held = [client.open_session(picture(), "a hill", **SMALL) for _ in range(4)]
            for session in held:
                await session.open()
            with pytest.raises(errors.SessionLimit, match="4 sessions are open, at most 4"):
                await client.open_session(picture(), "a hill", **SMALL).open()
            for session in held:
                await session.close()
            await play(client, ["w"], **SMALL)

    asyncio.run(scenario())


def test_start_on_a_live_id_replaces_the_session(server: ServerProcess) -> None:
    async def scenario() -> None:
        async with WorldClient(server.grpc) as client:
            stalling = {"seed": STALLING_SEED + 4, **SMALL}
            old = client.open_session(picture(), "a hill", sequence_id="same", **stalling)
            await old.open()
            await old.send("w")
            await admitted(old)
            new = await client.request("same", chunk_index=0, token=old.token, **START)
            assert statuses(new) == ["READY"] + ["FRAMES"] * 3
            assert [answer.frame_index for answer in new[1:]] == [0, 1, 5]
            with pytest.raises(errors.SessionFailed, match="replaced"):
                await old.next_chunk()
            closed = await client.request("same", token=old.token, end=True)
            assert statuses(closed) == ["CLOSED"]

    asyncio.run(scenario())


def test_another_token_meets_no_session_and_changes_nothing(server: ServerProcess) -> None:
    async def scenario() -> None:
        async with WorldClient(server.grpc) as client:
            await client.request("guarded", token="mine", **START)
            for wrong in ({}, {"token": "other"}):
                for request in ({"chunk_index": 0}, START, {"start": True}, {"end": True}):
                    (answer,) = await client.request("guarded", **wrong, **request)
                    assert answer.status == "NO_SESSION"
                # Triton has ended the sequence for whoever sent END; the session goes on.
                with pytest.raises(errors.NoSession, match="START"):
                    await client.request("guarded", token="mine", chunk_index=0)
                await client.request("guarded", start=True, **wrong)
            mine = await client.request("guarded", token="mine", start=True, chunk_index=0)
            assert statuses(mine) == ["FRAMES"] * 3
            assert statuses(await client.request("guarded", token="mine", end=True)) == ["CLOSED"]

    asyncio.run(scenario())


def test_closing_with_prefetches_in_flight(server: ServerProcess) -> None:
    async def scenario() -> None:
        async with WorldClient(server.grpc) as client:
            for _ in range(5):
                answers = await client.request("prefetching", **START)
                answers += await client.request("prefetching", end=True)
                assert statuses(answers) == ["READY", "CLOSED"]

    asyncio.run(scenario())


def test_a_hundred_sessions_leave_everything_as_it_was(server: ServerProcess) -> None:
    def state() -> tuple[set[int], set[str], float]:
        return set(server.processes()), {path.name for path in server.regions()}, sessions(server)

    async def scenario() -> None:
        async with WorldClient(server.grpc) as client:
            await reported(server, client)
            await eventually(lambda: sessions(server) == 0)
            before = state()
            opened = scrape(server.metrics)["lingbot_sessions_opened_total"]
            for _ in range(25):
                chunks = await asyncio.gather(*(play(client, ["w"], **SMALL) for _ in range(4)))
                assert [len(each[0].frames) for each in chunks] == [9] * 4
            await reported(server, client)
        await eventually(lambda: state() == before)
        assert scrape(server.metrics)["lingbot_sessions_opened_total"] == opened + 100
        assert sessions(server) == 0
        assert scrape(server.metrics)["lingbot_conditions_alive"] == 0

    asyncio.run(scenario())
