"""Many sessions over one and over several instances of the workers."""

from __future__ import annotations

import asyncio
import math
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

import click
from lingbot_client import WorldClient
from lingbot_client.figures import Figures, figures
from lingbot_client.pace import Gate, Pace, Played
from rich.table import Table

from lingbot_tools.bench import commands
from lingbot_tools.bench.drive import FrameSize, errors, measure, open_session
from lingbot_tools.bench.hosting import Stages, Target, serving
from lingbot_tools.bench.report import Bar, Report, new_table, stated
from lingbot_triton.simulated.profiles import find_profile
from lingbot_triton.stage import STAGES
from lingbot_triton.triton.placement import Place
from lingbot_triton.triton.render import write

UTILISATION_BAR, THROUGHPUT_BAR, FAIRNESS_BAR, IDLE_BAR = 0.97, 0.95, 1.1, 0.98
SEED = 1000
"""Seed of the first session; each further one has the next, so that frames cannot be mixed up."""


@dataclass(frozen=True)
class Case:
    """Some sessions on some instances of each worker."""

    name: str
    sessions: int
    instances: int
    idle: int = 0
    """Further sessions, which open and send nothing."""


CASES = (
    Case("4 sessions, 1 instance", 4, 1),
    Case("4 sessions and 4 silent ones, 1 instance", 4, 1, idle=4),
    Case("8 sessions, 4 instances", 8, 4),
)


@dataclass(frozen=True)
class Results:
    """What one case came to while all its sessions were at work: the fields of the report."""

    case: Case
    window_seconds: float
    """From the end of the last warm-up to the end of the first session."""
    chunks: list[int]
    """Chunks of each session within the window."""
    chunks_per_second: float
    """Of all sessions together."""
    utilisation: float
    """Chunks a second over the most that the instances of denoise could do."""
    unfairness: float
    """Most chunks of a session over the fewest of another."""
    silent_chunks: int
    """Chunks the silent sessions were sent; none, or something is wrong."""
    figures: Figures


def summarise(
    case: Case, played: Sequence[Played], warm_up: int, cost: float, silent_chunks: int = 0
) -> Results:
    """`cost`: seconds that a chunk keeps an instance of denoise."""
    sessions = [session.samples for session in played]
    full = [samples for samples in sessions if len(samples) > warm_up]
    start = max((samples[warm_up - 1].last_at for samples in full), default=0.0)
    end = min((samples[-1].last_at for samples in full), default=0.0)
    chunks = [
        sum(start < sample.last_at <= end for sample in samples if sample.ok)
        for samples in sessions
    ]
    rate = sum(chunks) / (end - start) if end > start else math.nan
    unfairness = max(chunks) / min(chunks) if min(chunks) else math.inf
    return Results(
        case, end - start, chunks, rate, rate * cost / case.instances, unfairness,
        silent_chunks, figures(sessions, warm_up),
    )  # fmt: skip


async def run(
    target: Target, case: Case, size: FrameSize, chunks: int, warm_up: int, cost: float,
    advance: Callable[[str], None],
) -> tuple[Results, list[str]]:  # fmt: skip
    """Play all sessions of a case at the same time, each in a closed loop; also what failed."""
    gate, pace = Gate(case.sessions), Pace(warm_up + chunks)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(WorldClient(target.grpc))
        silent = [open_session(client, size, chunks, SEED - 1 - n) for n in range(case.idle)]
        for session in silent:
            await stack.enter_async_context(session)
        playing = (
            measure(client, size, pace, seed=SEED + number, gate=gate,
                    on_chunk=lambda sample: advance(case.name))
            for number in range(case.sessions)
        )  # fmt: skip
        played = await asyncio.gather(*playing)
    silent_chunks = sum((session.summary or {}).get("chunks", 0) for session in silent)
    return summarise(case, played, warm_up, cost, silent_chunks), errors(played)


def bars(results: Sequence[Results]) -> list[Bar]:
    """The promises about many sessions."""
    base, silent, several = results
    used = "useful denoise and commit time over all time, while every session was at work"
    beside = f"of the throughput without them; the silent ones got {silent.silent_chunks} chunks"
    share = silent.chunks_per_second / base.chunks_per_second
    return [
        Bar("failed chunks", sum(result.figures.failures for result in results), 0),
        Bar(f"denoise utilisation, {base.case.name}", base.utilisation, UTILISATION_BAR, True,
            note=used),
        Bar(f"of the ideal throughput, {several.case.name}", several.utilisation, THROUGHPUT_BAR,
            True),
        *(
            Bar(f"most over fewest chunks, {result.case.name}", result.unfairness, FAIRNESS_BAR)
            for result in results
        ),
        Bar("throughput beside silent sessions", share, IDLE_BAR, True, note=beside),
    ]  # fmt: skip


def table(results: Sequence[Results], cost: float) -> Table:
    """One row per case; an instance of denoise could make a chunk every `cost` seconds."""
    numbers = ("chunks each", "seconds", "chunks/s", "ideal", "utilisation",
               "first frames P50, ms", "period P50, ms")  # fmt: skip
    rows = new_table("sessions at a time, closed loops", ["case"], numbers)
    for result in results:
        rows.add_row(
            result.case.name,
            " ".join(map(str, result.chunks)),
            f"{result.window_seconds:.1f}",
            f"{result.chunks_per_second:.3f}",
            f"{result.case.instances / cost:.3f}" if cost else "-",
            f"{result.utilisation:.3f}",
            f"{result.figures.first_frames_server.p50:.0f}",
            f"{result.figures.period.p50:.0f}",
        )
    return rows


def instances(folder: Path, count: int) -> Path:
    """A copy of the model repository with `count` instances of every worker."""
    write(folder, {spec.name: Place(count=count) for spec in STAGES})
    return folder


@click.command("sessions")
@commands.simulation(scale=1.0)
@commands.count("--chunks", 16, "Chunks of each session, after the warm-up.", least=2)
@commands.warm_up(2)
@commands.size("Frames.", default="832x480")
@commands.json_report
@commands.enforce
def command(
    profile: str, scale: float, chunks: int, warm_up: int, size: FrameSize,
    json_path: Path | None, enforce: bool,
) -> None:  # fmt: skip
    """Several sessions at a time: use of the workers, fairness, and what silent ones cost."""
    stages, costs = Stages(profile, scale), find_profile(profile, scale)
    cost = (costs.denoise + costs.commit) / 1000  # how long a chunk keeps an instance of denoise
    total = sum(case.sessions for case in CASES) * (chunks + warm_up)
    results: list[Results] = []
    wrong: list[str] = []
    with commands.one_line_errors(), commands.progress(total) as advance:
        for count, cases in groupby(CASES, lambda case: case.instances):
            with (
                tempfile.TemporaryDirectory(prefix="lingbot-instances-") as folder,
                serving(None, stages.environment(), instances(Path(folder), count)) as target,
            ):
                for case in cases:
                    work = run(target, case, size, chunks, warm_up, cost, advance)
                    result, failures = asyncio.run(work)
                    results.append(result)
                    wrong += target.explain(failures)
    about = {
        "simulated": stages.simulated,
        "frames": str(size),
        "measured": f"closed loops, {chunks} chunks a session after {warm_up} warm-up chunks; "
        "a server for each number of instances, with so many of every worker",
        "window": "from the moment the last session ended its warm-up until the first one had "
        "all its chunks",
        "left_out": "GPUs: instances here sleep side by side, on a GPU they would share it",
    }
    details = {"cases": [asdict(result) for result in results]}
    tables, rows = [table(results, cost)], stated(bars(results), scale == 1.0)
    Report("sessions", about, tables, rows, details, wrong).finish(json_path, enforce=enforce)
