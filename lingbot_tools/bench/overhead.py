"""What the server adds when stages cost nothing, beside a bare Triton echo of the same bytes."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import click
from lingbot_client import WorldClient
from lingbot_client.figures import Figures, figures
from lingbot_client.pace import Pace, Played
from rich.table import Table

from lingbot_tools.bench import commands
from lingbot_tools.bench.drive import FrameSize, errors, measure, take_turns
from lingbot_tools.bench.echo import write_echo_repository
from lingbot_tools.bench.hosting import Stages, serving
from lingbot_tools.bench.limits import CHUNK, CHUNK_FRAMES
from lingbot_tools.bench.report import Bar, Report, new_table

SERVER_TIME_BAR = 8.0
"""Milliseconds of the server's own time per chunk of tiny frames, P50."""

BEYOND_ECHO_BAR = 1.3
"""Time beyond the echo, in times of the echo."""

PROFILE = "seed-4xh100"
ECHO, WHOLE, PARTS, TINY = CASES = ("echo", "whole chunks", "parts", "tiny parts")


async def run(
    echo: str, service: str, size: FrameSize, pace: Pace, rounds: int,
    advance: Callable[[str], None],
) -> dict[str, list[Played]]:  # fmt: skip
    """Frames of `size` by the echo and by the service, whole and in parts; and tiny frames."""

    async def play(case: str, client: WorldClient, size: FrameSize, **options: Any) -> Played:
        played = await measure(client, size, pace, **options)
        advance(case)
        return played

    async with WorldClient(echo) as bare, WorldClient(service) as client:
        cases = {
            ECHO: partial(play, ECHO, bare, size),
            WHOLE: partial(play, WHOLE, client, size, decode_frames=CHUNK),
            PARTS: partial(play, PARTS, client, size, decode_frames=1),
            TINY: partial(play, TINY, client, commands.TINY_SIZE, decode_frames=1),
        }
        return await take_turns(rounds, cases)


def bars(results: dict[str, Figures]) -> list[Bar]:
    base = results[ECHO].whole_chunk_client.p50
    own = results[TINY].whole_chunk_server.p50
    own_note = "server's clock: acceptance to the whole chunk, decoded in three parts"
    beyond_note = f"P50s, client's clock; the echo takes {base:.1f} ms"
    return [
        Bar("failed chunks", sum(case.failures for case in results.values()), 0),
        Bar("server's own time per chunk, tiny frames, P50", own, SERVER_TIME_BAR,
            unit="ms", note=own_note),
        *(
            Bar(f"time beyond the echo, {name}, in times of the echo",
                (results[name].whole_chunk_client.p50 - base) / base, BEYOND_ECHO_BAR,
                note=beyond_note)
            for name in (WHOLE, PARTS)
        ),
    ]  # fmt: skip


def table(results: dict[str, Figures]) -> Table:
    """All cases under one another."""
    numbers = ("first frames P50", "whole chunk P50", "P90", "P99", "mean")
    rows = new_table("stages cost nothing; milliseconds per chunk", ("case", "clock"), numbers)
    for name, case in results.items():
        for clock in ("client", "server"):
            first = getattr(case, f"first_frames_{clock}")
            whole = getattr(case, f"whole_chunk_{clock}")
            if whole.count:
                values = (first.p50, whole.p50, whole.p90, whole.p99, whole.mean)
                rows.add_row(name, clock, *(f"{value:.2f}" for value in values))
    return rows


@click.command("overhead")
@commands.count("--chunks", 40)
@commands.warm_up(5)
@commands.count("--rounds", 3, "Sessions per case, the cases taking turns.")
@commands.size("Large frames.", default="832x480")
@commands.json_report
@commands.enforce
def command(
    chunks: int, warm_up: int, rounds: int, size: FrameSize, json_path: Path | None, enforce: bool
) -> None:  # fmt: skip
    """The server's own time per chunk, where stages cost nothing, beside a bare echo."""
    with ExitStack() as stack:
        stack.enter_context(commands.one_line_errors())
        advance = stack.enter_context(commands.progress(rounds * len(CASES)))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lingbot-echo-")))
        repository = write_echo_repository(folder, CHUNK_FRAMES, size.height, size.width)
        echo = stack.enter_context(serving(None, {}, repository))
        service = stack.enter_context(serving(None, Stages(PROFILE, 0).environment()))
        work = run(echo.grpc, service.grpc, size, Pace(warm_up + chunks), rounds, advance)
        played = asyncio.run(work)
        wrong = service.explain(errors(chain(*played.values())))
    results = {
        name: figures([session.samples for session in sessions], warm_up)
        for name, sessions in played.items()
    }
    about = {
        "simulated": "the stages: they make tensors of the real size and take no other time",
        "echo": f"a decoupled model that makes one BLS call to a plain model, which makes the "
        f"bytes of {CHUNK_FRAMES} frames of {size}; one response, nothing else; same client",
        "measured": f"closed loop, {chunks} chunks a session, {rounds} sessions a case, after "
        f"{warm_up} warm-up chunks; two servers, one at work at a time",
        "left_out": "network between machines; everything that stages do",
    }
    details = {"cases": {name: {"figures": asdict(case)} for name, case in results.items()}}
    report = Report("overhead", about, [table(results)], bars(results), details, wrong)
    report.finish(json_path, enforce=enforce)
