"""A session's spans as lanes in a picture, and as a trace that Perfetto opens."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

LANES = {
    "open": "opening",
    "prompt": "prompt",
    "condition": "condition (prefetch)",
    "queue": "control queued",
    "condition wait": "control waits for condition",
    "denoise": "denoise",
    "denoise step": "denoise steps",
    "commit": "commit",
    "decode": "decode",
}
"""Labels of the lanes from top to bottom; other lanes follow, and sending comes last."""
LAST_LANE = "send"
PALETTE = colormaps["tab10"]


@dataclass(frozen=True)
class Span:
    """One stage's work on one chunk, in seconds since the session was opened."""

    name: str
    chunk: int
    start: float
    end: float

    @property
    def lane(self) -> str:
        """What the span is drawn with: "open decode" is a part of "open"."""
        return "open" if self.name.startswith("open ") else self.name


def read_spans(summary: Mapping[str, Any] | None) -> list[Span]:
    """The spans of a closing summary; none unless the session had the option `trace`."""
    return [Span(*span) for span in (summary or {}).get("spans", ())]


def acceptances(spans: Iterable[Span]) -> dict[int, float]:
    """When each chunk's control was accepted, in the spans' time: from there on it queues."""
    return {span.chunk: span.start for span in spans if span.name == "queue"}


def lanes(spans: Iterable[Span]) -> dict[str, list[list[Span]]]:
    """Spans by lane, in rows within which none overlaps another."""
    rows: dict[str, list[list[Span]]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        free = (row for row in rows[span.lane] if row[-1].end <= span.start)
        row = next(free, None)
        if row is None:
            rows[span.lane].append([span])
        else:
            row.append(span)
    return dict(sorted(rows.items(), key=lambda lane: _order(lane[0])))


def _order(lane: str) -> tuple[int, str]:
    if lane == LAST_LANE:
        return len(LANES) + 1, lane
    return (list(LANES).index(lane) if lane in LANES else len(LANES)), lane


def trace_events(spans: Iterable[Span], session: str = "session") -> dict[str, Any]:
    """Spans in the Trace Event format: a process per session, a thread per row."""
    events: list[dict[str, Any]] = [_name("process_name", 0, session)]
    thread = 0
    for lane, rows in lanes(spans).items():
        for row in rows:
            thread += 1
            events.append(_name("thread_name", thread, LANES.get(lane, lane)))
            events += [_event(span, thread) for span in row]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def write_trace(path: Path, spans: Iterable[Span], session: str = "session") -> None:
    """Write a file for https://ui.perfetto.dev or chrome://tracing."""
    path.write_text(json.dumps(trace_events(spans, session)) + "\n")


def _name(what: str, thread: int, text: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": 1, "tid": thread, "args": {"name": text}}


def _event(span: Span, thread: int) -> dict[str, Any]:
    return {
        "name": f"{span.name} {span.chunk}",
        "cat": span.lane,
        "ph": "X",  # complete: a start and a duration, in microseconds
        "ts": round(span.start * 1e6),
        "dur": round((span.end - span.start) * 1e6),
        "pid": 1,
        "tid": thread,
        "args": {"chunk": span.chunk},
    }


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
    def visible(self) -> list[Span]:
        return [span for span in self.spans if span.end > self.since and span.start < self.end]


def draw(path: Path, panels: Sequence[Panel]) -> None:
    """Draw panels over each other on one time axis, a lane per stage, a colour per chunk."""
    drawn = [lanes(panel.visible) for panel in panels]
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
        labels.append(LANES.get(lane, lane))
        for row in rows:
            for span in row:
                _draw_span(axis, span, panel.since, y, width)
            y += 1
    for chunk, at in acceptances(panel.spans).items():
        if panel.since <= at < panel.end:
            axis.axvline(at - panel.since, color=_colour(chunk), linestyle="--", linewidth=1)
            axis.text(at - panel.since, -0.6, f" control {chunk}", fontsize=8, va="bottom")
    axis.set_yticks(ticks, labels)
    axis.set_ylim(y - 0.4, -1.4)
    axis.set_title(panel.title, loc="left", fontsize=10)
    axis.grid(axis="x", alpha=0.3)


def _draw_span(axis: Axes, span: Span, since: float, y: float, width: float) -> None:
    start, end = max(span.start - since, 0.0), min(span.end - since, width)
    axis.broken_barh(
        [(start, end - start)], (y - 0.38, 0.76), facecolors=_colour(span.chunk), edgecolor="white"
    )
    if end - start > 0.012 * width:
        axis.text(
            (start + end) / 2, y, str(span.chunk), fontsize=7,
            ha="center", va="center", color="white",
        )  # fmt: skip


def _colour(chunk: int) -> tuple[float, float, float, float]:
    red, green, blue, alpha = PALETTE(chunk % PALETTE.N)
    return red, green, blue, alpha
