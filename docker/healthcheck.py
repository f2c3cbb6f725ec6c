"""Plays one small chunk on a server: readiness alone says nothing about a dead worker.

    python healthcheck.py 127.0.0.1:8001

Exit code 0 where frames came, or where the server is full and so has no session to spare.
"""

import asyncio
import sys

from lingbot_client import Chunk, SessionLimit, WorldClient, WorldError
from lingbot_client.picture import default_picture

SECONDS = 40.0
AREA = 64 * 96


async def play(url: str) -> Chunk:
    async with (
        WorldClient(url) as client,
        client.open_session(default_picture(), "a meadow", chunk_count=1, max_area=AREA) as world,
    ):
        await world.send()
        return await world.next_chunk()


def main(url: str) -> int:
    try:
        frames = asyncio.run(asyncio.wait_for(play(url), SECONDS)).frames
    except SessionLimit as error:
        print(f"full: {error}")
        return 0
    except asyncio.TimeoutError:
        print(f"unhealthy: no frames within {SECONDS:g} s")
        return 1
    except (WorldError, OSError) as error:
        print(f"unhealthy: {error}")
        return 1
    print(f"healthy: {len(frames)} frames of {frames.shape[2]}x{frames.shape[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
