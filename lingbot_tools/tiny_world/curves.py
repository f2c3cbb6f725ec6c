"""Loss curves of every stage as one picture."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from lingbot_tools.tiny_world.work import Work

STAGES = ("vae", "dit")


def draw_curves(work: Work, path: Path) -> None:
    """One row per stage that has begun; psnr has an axis of its own."""
    begun = [(name, kept[0]) for name in STAGES if (kept := work.load(name)) is not None]
    if not begun:
        return
    with matplotlib.rc_context({"font.size": 8}):
        figure = Figure(figsize=(8, 2.4 * len(begun)), layout="constrained")
        for index, (name, reached) in enumerate(begun):
            axes = figure.add_subplot(len(begun), 1, index + 1)
            axes.set_title(f"{name}: {reached.step} steps, {reached.seconds / 60:.0f} min")
            for loss, points in reached.losses.items():
                if loss in ("psnr", "kl") or not points:
                    continue
                axes.plot(*zip(*points, strict=True), label=loss, linewidth=0.8)
            axes.set_yscale("log")
            axes.grid(alpha=0.3)
            if axes.lines:
                axes.legend(loc="upper right")
            if reached.losses.get("psnr"):
                right = axes.twinx()
                right.plot(*zip(*reached.losses["psnr"], strict=True), color="grey", linewidth=0.8)
                right.set_ylabel("PSNR, dB")
        figure.savefig(path, dpi=120)
