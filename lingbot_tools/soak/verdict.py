"""Whether anything grew, by lines fitted to what was seen after the warm-up; and its picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lingbot_tools.bench.report import Bar
from lingbot_tools.soak.phases import Phase, Sample

WARM_UP = 0.25
"""Share of a phase in which pools and caches may still fill."""

SLOWER = 1.1
QUIET = 0.1
"""Share of chunks that are as fast as the machine allows, whatever else it does."""


@dataclass(frozen=True)
class Growth:
    """One number of one process over a phase."""

    what: str
    start: float
    end: float
    slope: float
    """For each chunk, or session, after the warm-up."""


def settled(phase: Phase) -> list[Sample]:
    """The samples after the warm-up."""
    return [sample for sample in phase.samples if sample.done > WARM_UP * phase.count]


def slope(done: Sequence[float], values: Sequence[float]) -> float:
    """The steepness of the straight line that fits best."""
    if len(done) < 2:
        return 0.0
    return float(np.polyfit(np.asarray(done, float), np.asarray(values, float), 1)[0])


def memory(phase: Phase) -> list[Growth]:
    """Memory of every process and of all shared memory, in KB."""
    samples = settled(phase)
    done = [float(sample.done) for sample in samples]

    def growth(what: str, values: list[float]) -> Growth:
        return Growth(what, values[0], values[-1], slope(done, values))

    rows = [growth("shared memory", [float(sample.shared_kb) for sample in samples])]
    for name in sorted(set.intersection(*(set(sample.processes) for sample in samples))):
        values = [float(sample.processes[name].rss_kb) for sample in samples]
        rows.append(growth(name, values))
    return rows


def increase(phase: Phase, attribute: str) -> int:
    """How many threads or files all processes together have more at the end than after warm-up."""
    counts: list[int] = [
        sum(getattr(usage, attribute) for usage in sample.processes.values())
        for sample in settled(phase)
    ]
    part = max(1, len(counts) // 5)
    return max(counts[-part:]) - max(counts[:part])


def slowdown(phase: Phase) -> float:
    """Latency of the last tenth over that of the first tenth, each at its quiet moments.

    A machine does other things too, now more, now less: a median tells of those.
    """
    part = max(1, len(phase.latencies) // 10)
    tenths = (phase.latencies[:part], phase.latencies[-part:])
    first, last = (float(np.quantile(tenth, QUIET)) for tenth in tenths)
    return last / first


def bars(phase: Phase) -> list[Bar]:
    """Everything that a phase has to hold."""
    unit = f"KB/{phase.unit}"
    result = [
        Bar(f"{phase.name}: {growth.what}", growth.slope, phase.slope_kb, unit=unit)
        for growth in memory(phase)
    ]
    for attribute, what in (("threads", "more threads"), ("files", "more open files")):
        result.append(Bar(f"{phase.name}: {what}", float(increase(phase, attribute)), 0.0))
    note = "fast chunks of the last tenth over those of the first"
    result.append(Bar(f"{phase.name}: slowdown", slowdown(phase), SLOWER, note=note))
    return result


def draw(path: Path, phases: Sequence[Phase]) -> None:
    """Memory relative to its size after the warm-up, and latency, a column for each phase."""
    from matplotlib.figure import Figure  # takes a second to import

    figure = Figure(figsize=(7 * len(phases), 7), layout="constrained")
    axes = figure.subplots(2, len(phases), squeeze=False)
    for phase, (memory, latency) in zip(phases, axes.T, strict=True):
        done = [sample.done for sample in phase.samples]
        first = settled(phase)[0]
        curves = {
            name: [sample.processes[name].rss_kb for sample in phase.samples]
            for name in phase.samples[-1].processes
        }
        curves["shared memory"] = [sample.shared_kb for sample in phase.samples]
        for name, values in curves.items():
            base = values[phase.samples.index(first)]
            label = f"{name} ({base / 1024:.0f} MB)"
            memory.plot(done, [(value - base) / 1024 for value in values], label=label)
        memory.axvspan(0, WARM_UP * phase.count, alpha=0.1)
        memory.set(title=phase.name, xlabel=f"{phase.unit}s", ylabel="MB above the warm-up's end")
        memory.legend(fontsize=8)
        latency.plot([1000 * seconds for seconds in phase.latencies], linewidth=0.5)
        latency.set(xlabel="chunks", ylabel="ms from acceptance to last frames")
        latency.set_ylim(bottom=0)
    figure.savefig(path, dpi=110)
