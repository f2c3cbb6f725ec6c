"""What the server adds when stages cost nothing, beside a bare Triton echo of the same bytes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
from lingbot_client import WorldClient
from lingbot_client.figures import Distribution, Figures, figures
from lingbot_client.pace import Pace, Played
from rich.table import Table

from lingbot_tools.bench import commands
from lingbot_tools.bench.bars import Bar
from lingbot_tools.bench.drive import FrameSize, errors, measure
from lingbot_tools.bench.echo import write_echo_repository
from lingbot_tools.bench.hosting import serving, simulated
from lingbot_triton.world.family import WORLD_FAST
from lingbot_triton.world.geometry import video_frames

CHUNK = WORLD_FAST.chunk_latent_frames

SERVER_TIME_BAR = 8.0
"""Milliseconds of the server's own time per chunk of tiny frames, P50."""

BEYOND_ECHO_BAR = 1.3
"""Time beyond the echo, in times of the echo."""

PROFILE = "seed-4xh100"
TINY = FrameSize(96, 64)
CHUNK_FRAMES = video_frames(CHUNK, first=False)


@dataclass(frozen=True)
class Case:
    """Something to measure: by the echo, or by the service with some options."""

    name: str
    size: FrameSize
    echo: bool = False
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Results:
    """Sessions by case."""

    warm_up: int
    sessions: dict[str, list[Played]] = field(default_factory=dict)

    def figures(self, name: str) -> Figures:
        return figures([one.samples for one in self.sessions[name]], self.warm_up)


def cases(size: FrameSize) -> list[Case]:
    """Frames of `size` by the echo and by the service, whole and in parts; and tiny frames."""
    return [
        Case("echo", size, echo=True),
        Case("whole chunks", size, options={"decode_frames": CHUNK}),
        Case("parts", size, options={"decode_frames": 1}),
        Case("tiny parts", TINY, options={"decode_frames": 1}),
    ]


async def run(
    echo: str, service: str, size: FrameSize, pace: Pace, warm_up: int, rounds: int,
    advance: Callable[[str], None],
) -> Results:  # fmt: skip
    """Measure all cases in turn, `rounds` times."""
    results = Results(warm_up)
    async with WorldClient(echo) as echo_client, WorldClient(service) as service_client:
        for _ in range(rounds):
            for case in cases(size):
                client = echo_client if case.echo else service_client
                played = await measure(client, case.size, pace, **case.options)
                results.sessions.setdefault(case.name, []).append(played)
                advance(case.name)
    return results


def bars(results: Results) -> list[Bar]:
    echo, whole, parts, tiny = (
        results.figures(name) for name in ("echo", "whole chunks", "parts", "tiny parts")
    )
    base = echo.whole_chunk_client.p50
    return [
        Bar("failed chunks", sum(one.failures for one in (echo, whole, parts, tiny)), 0),
        Bar(
            "server's own time per chunk, tiny frames, P50",
            tiny.whole_chunk_server.p50,
            SERVER_TIME_BAR,
            unit="ms",
            note="server's clock: acceptance to the whole chunk, decoded in three parts",
        ),
        *(
            Bar(
                f"time beyond the echo, {name}, in times of the echo",
                (one.whole_chunk_client.p50 - base) / base,
                BEYOND_ECHO_BAR,
                note=f"P50s, client's clock; the echo takes {base:.1f} ms",
            )
            for name, one in (("whole chunks", whole), ("parts", parts))
        ),
    ]


def table(results: Results) -> Table:
    """All cases under one another."""
    shown = Table(title="stages cost nothing; milliseconds per chunk", title_justify="left")
    shown.add_column("case")
    shown.add_column("clock")
    for name in ("first frames P50", "whole chunk P50", "P90", "P99", "mean"):
        shown.add_column(name, justify="right")
    for name in results.sessions:
        found = results.figures(name)
        rows: tuple[tuple[str, Distribution, Distribution], ...] = (
            ("client", found.first_frames_client, found.whole_chunk_client),
            ("server", found.first_frames_server, found.whole_chunk_server),
        )
        for clock, first, whole in rows:
            if whole.count:
                values = (first.p50, whole.p50, whole.p90, whole.p99, whole.mean)
                shown.add_row(name, clock, *(f"{value:.2f}" for value in values))
    return shown


@click.command("overhead")
@click.option("--chunks", type=click.IntRange(1), default=40, show_default=True)
@click.option("--warm-up", type=click.IntRange(1), default=5, show_default=True)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Sessions per case, the cases taking turns.",
)
@click.option(
    "--size",
    type=commands.frame_size,
    metavar="WxH",
    default="832x480",
    show_default=True,
    help="Large frames.",
)
@commands.report_options
def command(
    chunks: int, warm_up: int, rounds: int, size: FrameSize, json_path: Path | None, enforce: bool
) -> None:  # fmt: skip
    """The server's own time per chunk, where stages cost nothing, beside a bare echo."""
    pace = Pace(warm_up + chunks)
    with ExitStack() as stack:
        stack.enter_context(commands.one_line_errors())
        advance = stack.enter_context(commands.progress(rounds * len(cases(size))))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lingbot-echo-")))
        repository = write_echo_repository(folder, CHUNK_FRAMES, size.height, size.width)
        echo = stack.enter_context(serving(None, {}, repository))
        service = stack.enter_context(serving(None, simulated(PROFILE, 0)))
        work = run(echo.grpc, service.grpc, size, pace, warm_up, rounds, advance)
        results = commands.run(work)
        played = [one for sessions in results.sessions.values() for one in sessions]
        wrong = service.explain(errors(played))
    commands.finish(
        "overhead",
        {
            "simulated": "the stages: they make tensors of the real size and take no other time",
            "echo": f"a decoupled model that makes one BLS call to a plain model, which makes the "
            f"bytes of {CHUNK_FRAMES} frames of {size.width}x{size.height}; one response, nothing "
            "else; same client",
            "measured": f"closed loop, {chunks} chunks a session, {rounds} sessions a case, after "
            f"{warm_up} warm-up chunks; two servers, one at work at a time",
            "left_out": "network between machines; everything that stages do",
        },
        [table(results)],
        bars(results),
        {"cases": {name: {"figures": asdict(results.figures(name))} for name in results.sessions}},
        errors=wrong,
        json_path=json_path,
        enforce=enforce,
    )
