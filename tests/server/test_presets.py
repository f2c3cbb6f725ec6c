"""A real server with a preset, weights in two folders and a bound on memory."""

from __future__ import annotations

import asyncio

import pytest
from lingbot_client import WorldClient, errors

from lingbot_triton.triton.server import ServerProcess
from tests.checkpoints import GOLDEN
from tests.server.conftest import StartServer
from tests.server.play import PROMPT, eventually, picture, play, sessions
from tests.server.workers import states

ACT = GOLDEN / "act" / "checkpoint"


@pytest.fixture(scope="module")
def server(shared_server: StartServer) -> ServerProcess:
    """With memory for two sessions."""
    return shared_server(
        checkpoint=str(ACT / "lingbot_world_fast"),
        companions=str(ACT),
        max_area=32 * 48,
        kv_budget_bytes=2**20,
        preset="window15",
        dtype="bfloat16",
        attention="auto",
    )


def ready_and_frames(server: ServerProcess, **options: object) -> tuple[dict[str, object], int]:
    async def scenario() -> tuple[dict[str, object], int]:
        async with (
            WorldClient(server.grpc) as client,
            client.open_session(picture(), "a hill", **options) as session,
        ):
            await session.send("w")
            chunk = await session.next_chunk()
            return session.ready, len(chunk.frames)

    return asyncio.run(scenario())


def test_ready_says_what_computes_and_the_preset_gives_the_defaults(
    server: ServerProcess,
) -> None:
    ready, frames = ready_and_frames(server)
    assert frames == 9
    expected = {"preset": "window15", "steps": 4, "lossy": False, "dtype": "bfloat16"}
    # Without a GPU, auto is torch's own attention.
    expected |= {"attention": "sdpa", "compiled": False, "device": "cpu", "control_type": "act"}
    assert {name: ready[name] for name in expected} == expected
    assert ready["chunk_count"] is None
    assert ready["options"]["kv_window_frames"] == 15
    assert ready["options"]["kv_sink_frames"] == 3
    ready, _ = ready_and_frames(server, kv_window_frames=None)
    assert (ready["chunk_count"], ready["options"]["kv_sink_frames"]) == (7, 0)


def test_memory_is_refused_before_it_is_allocated(server: ServerProcess) -> None:
    async def scenario() -> None:
        async with WorldClient(server.grpc) as client:
            held = [client.open_session(picture(), PROMPT) for _ in range(2)]
            for session in held:
                await session.open()
            with pytest.raises(errors.SessionLimit, match=r"session needs .* MiB of memory; "):
                await client.open_session(picture(), PROMPT).open()
            with pytest.raises(errors.SessionLimit, match=r"session needs .* MiB of memory; "):
                await client.open_session(picture(), PROMPT, kv_window_frames=1000).open()
            for stage in ("condition", "denoise", "decode"):
                await eventually(lambda stage=stage: set(states(server, stage).values()) == {2})
            await eventually(lambda: sessions(server) == 2)
            await held.pop().close()
            assert len(await play(client, ["w"])) == 1
            await held.pop().close()

    asyncio.run(scenario())
