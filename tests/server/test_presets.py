"""What READY says of what computes, on a real server with a preset and weights in two folders."""

from __future__ import annotations

import asyncio
from pathlib import Path

from lingbot_client import WorldClient

from lingbot_triton.triton.server import ServerProcess
from tests.server.conftest import StartServer
from tests.server.play import picture

ACT = Path(__file__).parents[1] / "golden" / "act" / "checkpoint"


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
    own_server: StartServer,
) -> None:
    server = own_server(
        checkpoint=str(ACT / "lingbot_world_fast"),
        companions=str(ACT),
        max_area=32 * 48,
        preset="window15",
        dtype="bfloat16",
        attention="auto",
    )
    ready, frames = ready_and_frames(server)
    assert frames == 9
    told = {"preset": "window15", "steps": 4, "lossy": False, "dtype": "bfloat16"}
    # Without a GPU, auto is torch's own attention.
    told |= {"attention": "sdpa", "compiled": False, "device": "cpu", "control_type": "act"}
    assert {name: ready[name] for name in told} == told
    assert ready["chunk_count"] is None
    assert ready["options"]["kv_window_frames"] == 15
    assert ready["options"]["kv_sink_frames"] == 3
    ready, _ = ready_and_frames(server, kv_window_frames=None)
    assert (ready["chunk_count"], ready["options"]["kv_sink_frames"]) == (7, 0)
