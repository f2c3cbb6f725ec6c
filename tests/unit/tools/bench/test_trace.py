from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from lingbot_client.timeline import Panel, draw
from lingbot_client.trace import Span, acceptances, lanes, read_spans, trace_events, write_trace
from PIL import Image

SUMMARY = {
    "reason": "end",
    "spans": [
        ["open condition", 0, 0.0, 0.01],
        ["send", 0, 1.3, 1.4],
        ["condition", 0, 0.01, 0.36],
        ["condition", 1, 0.36, 0.7],
        ["queue", 0, 0.1, 0.2],
        ["condition wait", 0, 0.2, 0.36],
        ["denoise", 0, 0.36, 1.2],
        ["denoise step", 0, 0.4, 0.8],
        ["denoise step", 0, 0.8, 1.2],
        ["commit", 0, 1.2, 1.45],
        ["decode", 0, 1.2, 1.3],
        ["decode", 0, 1.25, 1.35],
        ["polish", 0, 1.35, 1.36],
    ],
}
SPANS = read_spans(SUMMARY)


def test_a_summary_without_spans_has_none() -> None:
    assert read_spans(None) == read_spans({"reason": "end"}) == []
    assert len(SPANS) == len(SUMMARY["spans"])


def test_lanes_have_the_order_in_which_work_began_whatever_the_stages_are() -> None:
    assert list(lanes(SPANS)) == [
        "open", "condition", "queue", "condition wait", "denoise", "denoise step", "commit",
        "decode", "send", "polish",
    ]  # fmt: skip


def test_no_span_of_a_row_overlaps_another() -> None:
    found = lanes(SPANS)
    assert len(found["decode"]) == 2
    assert len(found["condition"]) == 1
    for rows in found.values():
        for row in rows:
            assert all(before.end <= after.start for before, after in pairwise(row))
    assert sorted(span for rows in found.values() for row in rows for span in map(str, row)) == (
        sorted(map(str, SPANS))
    )


def test_a_control_is_accepted_when_it_starts_to_queue() -> None:
    assert acceptances(SPANS) == {0: 0.1}


def test_a_trace_has_a_complete_event_for_every_span(tmp_path: Path) -> None:
    write_trace(tmp_path / "t.json", SPANS, "a session")
    document = json.loads((tmp_path / "t.json").read_text())
    events = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert len(events) == len(SPANS)
    commit = next(event for event in events if event["name"] == "commit 0")
    assert (commit["ts"], commit["dur"]) == (1_200_000, 250_000)
    assert commit["args"] == {"chunk": 0}


def test_a_trace_names_its_process_and_every_thread() -> None:
    events = trace_events(SPANS, "a session")["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names[0] == "a session"
    threads = {event["tid"] for event in events if event["ph"] == "X"}
    assert threads == set(names) - {0}
    assert names[next(e["tid"] for e in events if e["name"] == "commit 0")] == "commit"


def test_events_of_one_thread_do_not_overlap() -> None:
    events = [e for e in trace_events(SPANS)["traceEvents"] if e["ph"] == "X"]
    for thread in {event["tid"] for event in events}:
        mine = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["tid"] == thread)
        assert all(before[1] <= after[0] for before, after in pairwise(mine))


def test_a_timeline_shows_a_span_where_it_is(tmp_path: Path) -> None:
    blank, drawn = tmp_path / "blank.png", tmp_path / "drawn.png"
    draw(blank, [Panel("a", [Span("commit", 9, 5.0, 6.0)], since=0.0, until=1.0)])
    draw(drawn, [Panel("a", [Span("commit", 9, 0.2, 0.8)], since=0.0, until=1.0)])
    with Image.open(blank) as before, Image.open(drawn) as after:
        assert _colour_of_chunk_9(before) == 0
        assert _colour_of_chunk_9(after) > 1000


def _colour_of_chunk_9(picture: Image.Image) -> int:
    """How many pixels have the tenth colour of the palette."""
    return sum(pixel == (23, 190, 207) for pixel in picture.convert("RGB").get_flattened_data())
