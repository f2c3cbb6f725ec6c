"""Many sessions over one and over several instances of the workers."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from urllib.request import urlopen

from lingbot_client import WorldClient, WorldSession
from lingbot_client.figures import ChunkSample, Figures, figures
from lingbot_client.pace import Gate, Pace, Played

from lingbot_tools.bench.bars import Bar
from lingbot_tools.bench.drive import FrameSize, measure, open_session
from lingbot_triton.simulated.profiles import CostProfile
from lingbot_triton.stage import DENOISE_STAGE

UTILISATION_BAR, THROUGHPUT_BAR, FAIRNESS_BAR, IDLE_BAR = 0.97, 0.95, 1.1, 0.98
SEED = 1000
"""Seed of the first session; each further one has the next, so that frames cannot be mixed up."""

COMPUTED = re.compile(
    rf'^nv_inference_compute_infer_duration_us{{model="{DENOISE_STAGE.name}".*}} (\S+)$', re.M
)


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


@dataclass
class Results:
    """What one case came to, over the time in which all its sessions were at work."""

    case: Case
    played: list[Played]
    warm_up: int
    cost: float
    """Seconds that a chunk keeps an instance of denoise: its steps and its commit."""
    computed: float
    """Seconds that the instances of denoise computed from the first control to the last chunk,
    as Triton counted them."""
    elapsed: float
    silent_chunks: int = 0
    """Chunks the silent sessions were sent; none, or something is wrong."""
    window: tuple[float, float] = field(init=False)

    def __post_init__(self) -> None:
        full = [one.samples for one in self.played if len(one.samples) > self.warm_up]
        start = max((samples[self.warm_up - 1].last_at for samples in full), default=0.0)
        end = min((samples[-1].last_at for samples in full), default=0.0)
        self.window = (start, end)

    @property
    def seconds(self) -> float:
        return self.window[1] - self.window[0]

    @property
    def figures(self) -> Figures:
        return figures([one.samples for one in self.played], self.warm_up)

    @property
    def chunks(self) -> list[int]:
        """Chunks of each session within the window."""
        start, end = self.window
        return [
            sum(start < sample.last_at <= end for sample in one.samples if sample.ok)
            for one in self.played
        ]

    @property
    def throughput(self) -> float:
        """Chunks a second of all sessions together."""
        return sum(self.chunks) / self.seconds if self.seconds > 0 else float("nan")

    @property
    def utilisation(self) -> float:
        """Throughput over the most that the instances of denoise could do."""
        return self.throughput * self.cost / self.case.instances

    @property
    def counted_utilisation(self) -> float:
        """The same by Triton's own counter of computing time, opening and draining included."""
        return self.computed / (self.elapsed * self.case.instances)

    @property
    def unfairness(self) -> float:
        """Most chunks of a session over the fewest of another."""
        return max(self.chunks) / min(self.chunks) if min(self.chunks) else float("inf")


async def run(
    client: WorldClient,
    metrics: str,
    case: Case,
    size: FrameSize,
    chunks: int,
    warm_up: int,
    profile: CostProfile,
    on_chunk: Callable[[ChunkSample], None],
) -> Results:
    """Play all sessions of a case at the same time, each in a closed loop."""
    silent = [open_session(client, size, chunks, SEED - 1 - number) for number in range(case.idle)]
    for session in silent:
        await session.open()
    try:
        before, started = _computed(metrics), time.monotonic()
        gate = Gate(case.sessions)
        pace = Pace(warm_up + chunks)
        playing = (
            measure(client, size, pace, seed=SEED + number, gate=gate, on_chunk=on_chunk)
            for number in range(case.sessions)
        )
        played = list(await asyncio.gather(*playing))
        elapsed, computed = time.monotonic() - started, _computed(metrics) - before
    finally:
        silent_chunks = await _close(silent)
    cost = (profile.denoise + profile.commit) / 1000
    return Results(case, played, warm_up, cost, computed, elapsed, silent_chunks)


async def _close(sessions: Sequence[WorldSession]) -> int:
    """Close the silent sessions; returns how many chunks they got."""
    await asyncio.gather(*(session.close() for session in sessions))
    return sum((session.summary or {}).get("chunks", 0) for session in sessions)


def _computed(metrics: str) -> float:
    """Seconds that the instances of denoise have computed; NaN where there are no metrics."""
    if not metrics:
        return float("nan")
    with urlopen(f"http://{metrics}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return sum(float(value) for value in COMPUTED.findall(text)) / 1e6


def bars(results: Sequence[Results]) -> list[Bar]:
    """The promises about many sessions."""
    one, silent, several = results
    rows = [Bar("failed chunks", sum(found.figures.failures for found in results), 0)]
    note = "useful denoise and commit time over all time, while every session was at work"
    rows.append(
        Bar(
            f"denoise utilisation, {one.case.name}",
            one.utilisation,
            UTILISATION_BAR,
            True,
            "",
            note,
        )
    )
    rows.append(
        Bar(
            f"of the ideal throughput, {several.case.name}",
            several.utilisation,
            THROUGHPUT_BAR,
            True,
        )
    )
    rows += [
        Bar(f"most over fewest chunks, {found.case.name}", found.unfairness, FAIRNESS_BAR)
        for found in results
    ]
    note = f"of the throughput without them; {silent.silent_chunks} chunks came to the silent ones"
    ratio = silent.throughput / one.throughput
    rows.append(Bar("throughput beside silent sessions", ratio, IDLE_BAR, True, "", note))
    return rows
