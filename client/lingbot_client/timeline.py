"""A session's spans as lanes in a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lingbot_client.trace import Span, acceptances, lanes

PALETTE = colormaps["tab10"]
THIN, LABELLED = 0.003, 0.012
"""Shares of the axis: up to the first a span is drawn without an edge, above the other with its
chunk's number."""


@dataclass(frozen=True)
class Panel:
    """A stretch of one session to draw."""

    title: str
    spans: Sequence[Span]
    since: float = 0.0
    """Where the time axis starts, in the spans' time."""
    until: float | None = None
    """Where it ends, None after the last span."""

    @property
    def end(self) -> float:
        last = max((span.end for span in self.spans), default=self.since)
        return last if self.until is None else self.until

    @property
    def lanes(self) -> dict[str, list[list[Span]]]:
        """Rows of what is visible, by lane; the lanes in the order of the whole session."""
        visible = lanes(
            span for span in self.spans if span.end > self.since and span.start < self.end
        )
        return {lane: visible[lane] for lane in lanes(self.spans) if lane in visible}


def draw(path: Path, panels: Sequence[Panel]) -> None:
    """Draw panels over each other on one time axis, a lane per stage, a colour per chunk."""
    drawn = [panel.lanes for panel in panels]
    heights = [max(1, sum(map(len, rows.values()))) + 1.8 for rows in drawn]
    figure = Figure(figsize=(14, 0.34 * sum(heights) + 0.8), layout="constrained")
    axes = figure.subplots(len(panels), squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    width = max(panel.end - panel.since for panel in panels)
    for axis, panel, rows in zip(axes, panels, drawn, strict=True):
        axis.set_xlim(0, width)
        _draw_panel(axis, panel, rows, width)
    axes[-1].set_xlabel("seconds")
    figure.savefig(path, dpi=110)


def _draw_panel(axis: Axes, panel: Panel, drawn: dict[str, list[list[Span]]], width: float) -> None:
    ticks, labels, y = [], [], 0
    for lane, rows in drawn.items():
        ticks.append(y + (len(rows) - 1) / 2)
        labels.append(lane)
        for row in rows:
            for span in row:
                _draw_span(axis, span, panel.since, y, width)
            y += 1
    for chunk, at in acceptances(panel.spans).items():
        if panel.since <= at < panel.end:
            axis.axvline(at - panel.since, color=_colour(chunk), linestyle="--", linewidth=1)
            axis.text(
                at - panel.since, -0.6, f" control {chunk}", fontsize=8, va="bottom", clip_on=True
            )
    axis.set_yticks(ticks, labels)
    axis.set_ylim(y - 0.4, -1.4)
    axis.set_title(panel.title, loc="left", fontsize=10)
    axis.grid(axis="x", alpha=0.3)


def _draw_span(axis: Axes, span: Span, since: float, y: float, width: float) -> None:
    start, end = max(span.start - since, 0.0), min(span.end - since, width)
    colour = _colour(span.chunk)
    axis.broken_barh(
        [(start, end - start)],
        (y - 0.38, 0.76),
        facecolors=colour,
        edgecolor="white" if end - start > THIN * width else colour,  # an edge would hide it
        linewidth=0.5,
    )
    if end - start > LABELLED * width:
        middle = (start + end) / 2
        axis.text(middle, y, str(span.chunk), fontsize=7, ha="center", va="center", color="white")


def _colour(chunk: int) -> tuple[float, float, float, float]:
    red, green, blue, alpha = PALETTE(chunk % PALETTE.N)
    return red, green, blue, alpha
