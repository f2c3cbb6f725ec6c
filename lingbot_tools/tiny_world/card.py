"""What a training leaves to be read: the checkpoint's card, and the loss curves."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from lingbot_tools.tiny_world.loop import Reached, Work
from lingbot_tools.tiny_world.scene import COLOURS, FLOORS, KINDS, SKIES


def write_card(checkpoint: Path, work: Work) -> None:
    """README.md in the checkpoint's folder, with the newest measurements there are."""
    films = work.read_json("films.json") or {"films": 0}
    evaluation = work.read_json("evaluation.json") or {"scenes": 0, "table": ""}
    stages = [f"| {name} | {at.step} | {at.seconds / 60:.0f} |" for name, at in _begun(work)]
    template = Path(__file__).with_name("card.md").read_text(encoding="utf-8")
    text = template.format(
        kinds=", ".join(KINDS),
        floors=", ".join(FLOORS),
        colours=", ".join(COLOURS),
        skies=", ".join(SKIES),
        stages="\n".join(stages),
        films=films,
        evaluation=evaluation,
        plan=work.read_json("plan.json"),
    )
    (checkpoint / "README.md").write_text(text, encoding="utf-8")


def draw_curves(work: Work, path: Path) -> None:
    """One row per stage that has begun; psnr has an axis of its own."""
    begun = _begun(work)
    with matplotlib.rc_context({"font.size": 8}):
        figure = Figure(figsize=(8, 2.4 * len(begun)), layout="constrained")
        rows = figure.subplots(len(begun), squeeze=False)[:, 0]
        for axes, (name, at) in zip(rows, begun, strict=True):
            axes.set(title=f"{name}: {at.step} steps, {at.seconds / 60:.0f} min", yscale="log")
            axes.grid(alpha=0.3)
            for loss, points in at.losses.items():
                if loss not in ("psnr", "kl"):
                    axes.plot(*_smoothed(points), label=loss, linewidth=0.8)
            axes.legend(loc="upper right")
            if psnr := at.losses.get("psnr"):
                right = axes.twinx()
                right.plot(*_smoothed(psnr), color="grey", linewidth=0.8)
                right.set_ylabel("PSNR, dB")
        figure.savefig(path, dpi=120)


def _begun(work: Work) -> list[tuple[str, Reached]]:
    return [(name, kept[0]) for name in ("vae", "dit") if (kept := work.load(name)) is not None]


def _smoothed(points: list[tuple[int, float]]) -> NDArray[np.float64]:
    """Steps and values, [2, n]: means of ten points each, those that remain left out."""
    tens = np.array(points[: len(points) // 10 * 10]).reshape(-1, 10, 2)
    means: NDArray[np.float64] = tens.mean(axis=1).T
    return means
