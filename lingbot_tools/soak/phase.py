"""Whether anything grew, by lines fitted to what was seen after the warm-up; and its picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lingbot_tools.bench.report import Bar

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
        done = [sample.done for sample in samples]
        return {
            name: float(np.polyfit(done, values, 1)[0]) if len(done) > 1 else 0.0
            for name, values in sizes(samples).items()
        }

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


def sizes(samples: Sequence[Sample]) -> dict[str, list[int]]:
    """Curves, in KB, of what is in all the samples."""
    names = set.intersection(*(set(sample.sizes) for sample in samples))
    return {name: [sample.sizes[name] for sample in samples] for name in sorted(names)}


def draw(path: Path, phases: Sequence[Phase]) -> None:
    """Memory relative to its size after the warm-up, and latency, a column for each phase."""
    from matplotlib.figure import Figure  # takes a second to import

    figure = Figure(figsize=(7 * len(phases), 7), layout="constrained")
    axes = figure.subplots(2, len(phases), squeeze=False)
    for phase, (memory, latency) in zip(phases, axes.T, strict=True):
        done = [sample.done for sample in phase.samples]
        first = phase.samples.index(phase.settled()[0])
        for name, values in sizes(phase.samples).items():
            label = f"{name} ({values[first] / 1024:.0f} MB)"
            memory.plot(done, [(value - values[first]) / 1024 for value in values], label=label)
        memory.axvspan(0, WARM_UP * phase.count, alpha=0.1)
        memory.set(title=phase.name, xlabel=f"{phase.unit}s", ylabel="MB above the warm-up's end")
        memory.legend(fontsize=8)
        latency.plot([1000 * seconds for seconds in phase.latencies], linewidth=0.5)
        latency.set(xlabel="chunks", ylabel="ms from acceptance to last frames", ylim=(0, None))
    figure.savefig(path, dpi=110)
