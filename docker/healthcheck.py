"""Plays one small chunk on a server: readiness alone says nothing about a dead worker.

    python healthcheck.py 127.0.0.1:8001 127.0.0.1:8002

Exit code 0 where frames came. While sessions are open it takes no place that a user may need: then
the orchestrator has to respond, and every stage has to accept sessions.
"""

import asyncio
import http.client
import sys

from lingbot_client import BadRequest, SessionLimit, WorldClient, WorldError
from lingbot_client.picture import default_picture

from lingbot_triton.metrics import SESSIONS, UNAVAILABLE
from lingbot_triton.triton.scrape import scrape, total

SECONDS = 40.0
AREA = 64 * 96


async def play(url: str) -> str:
    async with (
        WorldClient(url) as client,
        client.open_session(default_picture(), "a meadow", chunk_count=1, max_area=AREA) as world,
    ):
        await world.send()
        frames = (await world.next_chunk()).frames
    return f"{len(frames)} frames of {frames.shape[2]}x{frames.shape[1]}"


async def ask(url: str) -> str:
    """Ask for a session that is refused for its options, whether or not there is a place for it."""
    async with WorldClient(url) as client:
        try:
            await client.open_session(default_picture(), "a meadow", chunk_count=0).open()
        except BadRequest:
            return "sessions are open, and the orchestrator answers"
    raise AssertionError("a session of no chunks was opened")


def main(url: str, metrics: str) -> int:
    try:
        series = scrape(metrics)
        away = [
            name for name, value in series.items() if name.startswith(UNAVAILABLE.name) and value
        ]
        if away:
            print(f"unhealthy: {', '.join(away)}")
            return 1
        check = ask if total(series, SESSIONS.name) else play
        result = asyncio.run(asyncio.wait_for(check(url), SECONDS))
    except SessionLimit as error:  # another session was opened in between
        result = f"full: {error}"
    except asyncio.TimeoutError:
        print(f"unhealthy: no answer within {SECONDS:g} s")
        return 1
    except (WorldError, OSError, http.client.HTTPException) as error:
        print(f"unhealthy: {error}")
        return 1
    print(f"healthy: {result}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
