"""A session's spans: what each stage did when, by lane, and as a trace that Perfetto opens."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


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
    """Spans by lane, in rows within which none overlaps another.

    Lanes are in the order in which work in them first began, whatever the server's stages are.
    """
    rows: dict[str, list[list[Span]]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: span.start):
        row = next((row for row in rows[span.lane] if row[-1].end <= span.start), None)
        if row is None:
            rows[span.lane].append([span])
        else:
            row.append(span)
    return dict(rows)


def trace_events(spans: Iterable[Span], session: str = "session") -> dict[str, Any]:
    """Spans in the Trace Event format: a process per session, a thread per row."""
    events: list[dict[str, Any]] = [_name("process_name", 0, session)]
    thread = 0
    for lane, rows in lanes(spans).items():
        for row in rows:
            thread += 1
            events.append(_name("thread_name", thread, lane))
            events += [_event(span, thread) for span in row]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def write_trace(path: Path, spans: Iterable[Span], session: str = "session") -> None:
    """Write a file for https://ui.perfetto.dev or chrome://tracing."""
    path.write_text(json.dumps(trace_events(spans, session)) + "\n")


def _name(what: str, thread: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": 1, "tid": thread, "args": {"name": name}}


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
