"""A picture of a soak: memory and latency over chunks and sessions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from lingbot_tools.soak.phases import Phase
from lingbot_tools.soak.verdict import WARM_UP


def draw(path: Path, phases: Sequence[Phase]) -> None:
    """Memory relative to its size after the warm-up, and latency, a column for each phase."""
    figure = Figure(figsize=(7 * len(phases), 7), layout="constrained")
    axes = figure.subplots(2, len(phases), squeeze=False)
    for phase, (memory, latency) in zip(phases, axes.T, strict=True):
        warm = WARM_UP * phase.count
        done = [sample.done for sample in phase.samples]
        first = next(sample for sample in phase.samples if sample.done > warm)
        for name in phase.samples[-1].processes:
            base = first.processes[name].rss_kb
            values = [(sample.processes[name].rss_kb - base) / 1024 for sample in phase.samples]
            memory.plot(done, values, label=f"{name} ({base / 1024:.0f} MB)")
        shared = [(sample.shared_kb - first.shared_kb) / 1024 for sample in phase.samples]
        label = f"shared memory ({first.shared_kb / 1024:.0f} MB)"
        memory.plot(done, shared, label=label, linestyle="--")
        memory.axvspan(0, warm, alpha=0.1)
        memory.set_title(phase.name)
        memory.set_ylabel("MB more than after the warm-up")
        memory.set_xlabel(f"{phase.unit}s")
        memory.legend(fontsize=8)
        latency.plot([1000 * seconds for seconds in phase.latencies], linewidth=0.5)
        latency.set_ylabel("ms from acceptance to last frames")
        latency.set_xlabel("chunks")
        latency.set_ylim(bottom=0)
    figure.savefig(path, dpi=110)
