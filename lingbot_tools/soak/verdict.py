"""Whether anything grew, by lines fitted to what was seen after the warm-up; and its picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.table import Table

from lingbot_tools.bench.report import Bar, new_table
from lingbot_tools.soak.phases import Phase, Sample

WARM_UP = 0.25
"""Share of a phase in which pools and caches may still fill."""

SLOWER = 1.1
QUIET = 0.1
"""Share of chunks that are as fast as the machine allows, whatever else it does."""


def settled(phase: Phase) -> list[Sample]:
    """The samples after the warm-up."""
    return [sample for sample in phase.samples if sample.done > WARM_UP * phase.count]


def memory(samples: Sequence[Sample]) -> dict[str, list[float]]:
    """KB of all shared memory, and of every process that is in all the samples."""
    names = set.intersection(*(set(sample.processes) for sample in samples))
    curves = {"shared memory": [float(sample.shared_kb) for sample in samples]}
    return curves | {
        name: [float(sample.processes[name].rss_kb) for sample in samples] for name in sorted(names)
    }


def slopes(phase: Phase) -> dict[str, float]:
    """KB by which the memory grows for each chunk, or session: the best line's steepness."""
    samples = settled(phase)
    done = [sample.done for sample in samples]
    return {
        name: float(np.polyfit(done, values, 1)[0]) if len(done) > 1 else 0.0
        for name, values in memory(samples).items()
    }


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
    first, last = np.quantile((phase.latencies[:part], phase.latencies[-part:]), QUIET, axis=1)
    return float(last / first)


def bars(phase: Phase) -> list[Bar]:
    """Everything that a phase has to hold."""
    slower = "fast chunks of the last tenth over those of the first"
    return [
        *(
            Bar(f"{phase.name}: {name}", slope, phase.slope_kb, unit=f"KB/{phase.unit}")
            for name, slope in slopes(phase).items()
        ),
        Bar(f"{phase.name}: more threads", float(increase(phase, "threads")), 0.0),
        Bar(f"{phase.name}: more open files", float(increase(phase, "files")), 0.0),
        Bar(f"{phase.name}: slowdown", slowdown(phase), SLOWER, note=slower),
    ]


def table(phase: Phase) -> Table:
    """What every process held after the warm-up and at the end; the slopes are in the bars."""
    title = f"{phase.name}: {phase.count} {phase.unit}s"
    result = new_table(title, ["memory of"], ["MB after warm-up", "MB at the end"])
    for name, values in memory(settled(phase)).items():
        result.add_row(name, *(f"{kb / 1024:.1f}" for kb in (values[0], values[-1])))
    return result


def draw(path: Path, phases: Sequence[Phase]) -> None:
    """Memory relative to its size after the warm-up, and latency, a column for each phase."""
    from matplotlib.figure import Figure  # takes a second to import

    figure = Figure(figsize=(7 * len(phases), 7), layout="constrained")
    axes = figure.subplots(2, len(phases), squeeze=False)
    for phase, (sizes, latency) in zip(phases, axes.T, strict=True):
        done = [sample.done for sample in phase.samples]
        first = phase.samples.index(settled(phase)[0])
        for name, values in memory(phase.samples).items():
            label = f"{name} ({values[first] / 1024:.0f} MB)"
            sizes.plot(done, [(value - values[first]) / 1024 for value in values], label=label)
        sizes.axvspan(0, WARM_UP * phase.count, alpha=0.1)
        sizes.set(title=phase.name, xlabel=f"{phase.unit}s", ylabel="MB above the warm-up's end")
        sizes.legend(fontsize=8)
        latency.plot([1000 * seconds for seconds in phase.latencies], linewidth=0.5)
        latency.set(xlabel="chunks", ylabel="ms from acceptance to last frames", ylim=(0, None))
    figure.savefig(path, dpi=110)
