"""`scripts/soak`: long play, what the processes use meanwhile, and whether anything grew."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import psutil
from lingbot_client import WorldClient
from lingbot_client.picture import DEFAULT_PROMPT, default_picture, encode_picture

from lingbot_tools.bench.commands import FILE, json_report, one_line_errors, progress
from lingbot_tools.bench.hosting import TINY, Stages
from lingbot_tools.bench.report import Bar, Report
from lingbot_triton.triton.foreground import foreground
from lingbot_triton.triton.server import ServerConfig, ServerProcess

KEYS = ("w", "wl", "", "sa", "ij")
AREA = 64 * 96
CHUNKS_OF_A_SHORT_SESSION = 2
SESSIONS_AT_A_TIME = 2
SETTLE_SECONDS = 0.05
"""What a closed session is given before its process sizes are read."""
SAMPLES = 200
WARM_UP = 0.25
"""Share of a phase in which pools and caches may still fill."""
SLOWER = 1.1
QUIET = 0.1
"""Share of chunks that are as fast as the machine allows, whatever else it does."""


@dataclass(frozen=True)
class Sample:
    """What was in use after so many chunks, or sessions."""

    done: int
    sizes: dict[str, int]
    """KB of shared memory, and of each process by its model's name, `tritonserver` or `client`."""
    threads: int
    files: int

    @classmethod
    def take(cls, server: ServerProcess, done: int) -> Sample:
        names = {pid: model for model, pid in server.model_processes().items()}
        names |= {server.pid: "tritonserver", os.getpid(): "client"}
        pids = (*server.processes(), os.getpid())
        usage = {names.get(pid, f"process-{pid}"): use(pid) for pid in pids}
        sizes = {name: rss_kb for name, (rss_kb, _, _) in usage.items()}
        # Shared memory counts as far as it is in use at all.
        sizes["shared memory"] = sum(path.stat().st_blocks for path in server.regions()) // 2
        threads, files = np.sum([numbers[1:] for numbers in usage.values()], axis=0).tolist()
        return cls(done, sizes, threads, files)


@dataclass
class Phase:
    """One kind of play, and what was seen during it."""

    name: str
    unit: str
    count: int
    slope_kb: float
    """By how much anything may grow for each chunk, or session."""
    samples: list[Sample] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    """Seconds from acceptance to last frames of the chunks, in the order in which they came."""

    @classmethod
    def endless(cls, chunks: int) -> Phase:
        return cls("one endless session", "chunk", chunks, slope_kb=1.0)

    @classmethod
    def short(cls, sessions: int) -> Phase:
        return cls("short sessions", "session", sessions, slope_kb=10.0)

    def due(self, done: int) -> bool:
        """Whether a sample is to be taken after so many chunks, or sessions."""
        return done % max(1, self.count // SAMPLES) == 0

    def settled(self) -> list[Sample]:
        """The samples after the warm-up."""
        return [sample for sample in self.samples if sample.done > WARM_UP * self.count]

    def slopes(self) -> dict[str, float]:
        """KB by which each size grows for each chunk, or session: the best line's steepness."""
        samples = self.settled()
        names = sorted(set.intersection(*(set(sample.sizes) for sample in samples)))
        if len(samples) < 2:
            return dict.fromkeys(names, 0.0)
        sizes = [[sample.sizes[name] for name in names] for sample in samples]
        steepness, _ = np.polyfit([sample.done for sample in samples], sizes, 1)
        return dict(zip(names, steepness.tolist(), strict=True))

    def increase(self, attribute: str) -> int:
        """How many threads or files there are more at the end than after the warm-up."""
        counts: list[int] = [getattr(sample, attribute) for sample in self.settled()]
        part = max(1, len(counts) // 5)
        return max(counts[-part:]) - max(counts[:part])

    def slowdown(self) -> float:
        """Latency of the last tenth over that of the first tenth, each at its quiet moments.

        A machine does other things too, now more, now less: a median tells of those.
        """
        part = max(1, len(self.latencies) // 10)
        tenths = (self.latencies[:part], self.latencies[-part:])
        first, last = np.quantile(tenths, QUIET, axis=1)
        return float(last / first)

    def bars(self) -> list[Bar]:
        """Everything that it has to hold."""
        name, unit = self.name, f"KB/{self.unit}"
        slower = "fast chunks of the last tenth over those of the first"
        slopes = self.slopes().items()
        return [
            *(Bar(f"{name}: {what}", slope, self.slope_kb, unit=unit) for what, slope in slopes),
            Bar(f"{name}: more threads", float(self.increase("threads")), 0.0),
            Bar(f"{name}: more open files", float(self.increase("files")), 0.0),
            Bar(f"{name}: slowdown", self.slowdown(), SLOWER, note=slower),
        ]


async def play(phase: Phase, server: ServerProcess, tick: Callable[[], None]) -> None:
    """Play the phase; `tick` is called after every chunk, or session."""
    # Encoded once: large blocks that come and go would hide what a session leaves here.
    picture = encode_picture(default_picture())

    def after(done: int) -> None:
        if phase.due(done):
            phase.samples.append(Sample.take(server, done))
        tick()

    async def session(chunks: int, after: Callable[[int], None], **options: Any) -> None:
        opening = client.open_session(picture, DEFAULT_PROMPT, max_area=AREA, **options)
        async with opening as session:
            for index in range(chunks):
                await session.send(KEYS[index % len(KEYS)])
                chunk = await session.next_chunk()
                if chunk.last_frame_ms is not None:
                    phase.latencies.append(chunk.last_frame_ms / 1000)
                after(index + 1)

    async with WorldClient(server.grpc) as client:
        if phase.unit == "chunk":
            await session(phase.count, after, kv_window_frames=6)
            return
        chunks = CHUNKS_OF_A_SHORT_SESSION
        for done in range(0, phase.count, SESSIONS_AT_A_TIME):
            numbers = range(done + 1, min(done + SESSIONS_AT_A_TIME, phase.count) + 1)
            short_sessions = (session(chunks, lambda _: None, chunk_count=chunks) for _ in numbers)
            await asyncio.gather(*short_sessions)
            await asyncio.sleep(SETTLE_SECONDS)
            for number in numbers:
                after(number)


def use(pid: int) -> tuple[int, int, int]:
    """Resident memory in KB, threads, and open files of a process."""
    process = psutil.Process(pid)
    return process.memory_info().rss // 1024, process.num_threads(), process.num_fds()


def draw(path: Path, phases: Sequence[Phase]) -> None:
    """Memory relative to its size after the warm-up, and latency, a column for each phase."""
    from matplotlib.figure import Figure  # takes a second to import

    figure = Figure(figsize=(7 * len(phases), 7), layout="constrained")
    axes = figure.subplots(2, len(phases), squeeze=False)
    for phase, (memory, latency) in zip(phases, axes.T, strict=True):
        done = [sample.done for sample in phase.samples]
        first = phase.settled()[0].sizes
        for name in phase.slopes():
            above = [(sample.sizes[name] - first[name]) / 1024 for sample in phase.samples]
            memory.plot(done, above, label=f"{name} ({first[name] / 1024:.0f} MB)")
        memory.axvspan(0, WARM_UP * phase.count, alpha=0.1)
        memory.set(title=phase.name, xlabel=f"{phase.unit}s", ylabel="MB above the warm-up's end")
        memory.legend(fontsize=8)
        latency.plot([1000 * seconds for seconds in phase.latencies], linewidth=0.5)
        latency.set(xlabel="chunks", ylabel="ms from acceptance to last frames", ylim=(0, None))
    figure.savefig(path, dpi=110)


@click.command(context_settings={"show_default": True})
@click.option("--chunks", type=click.IntRange(0), default=2000, help="Of one endless session.")
@click.option("--sessions", type=click.IntRange(0), default=500, help="Short ones after it.")
@click.option("--simulated", is_flag=True, help="Stages that take little time, not the tiny model.")
@json_report
@click.option("--plot", type=FILE, help="Picture to write, as PNG or SVG.")
def main(
    chunks: int, sessions: int, simulated: bool, json_path: Path | None, plot: Path | None
) -> None:
    """Play for long and look for what grows: memory, threads, files, latency; exit code 1 then."""
    phases = [phase for phase in (Phase.endless(chunks), Phase.short(sessions)) if phase.count]
    stages = Stages("seed-4xh100", 0.005, None if simulated else TINY)
    config = ServerConfig(environment=stages.environment(max_sessions=4))
    with one_line_errors(), progress(chunks + sessions) as tick, foreground(config) as server:
        for phase in phases:
            asyncio.run(play(phase, server, partial(tick, phase.name)))
            server.check_running()
    if plot is not None:
        draw(plot, phases)
    bars = [bar for phase in phases for bar in phase.bars()]
    details = {"phases": [asdict(phase) for phase in phases]}
    Report("soak", {"simulated": stages.simulated}, [], bars, details).finish(
        json_path, enforce=True
    )


if __name__ == "__main__":
    main(prog_name="scripts/soak")
