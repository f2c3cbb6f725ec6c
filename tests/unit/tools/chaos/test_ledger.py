"""The judge of chaotic runs finds every kind of broken promise, and nothing in a good history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from lingbot_client.errors import Cancelled, Disconnected, SequenceEnded, TritonError
from lingbot_client.protocol import Response

from lingbot_tools.chaos.ledger import DROPPED, FAILURES, LEFT, NO_SEQUENCE, Ledger, Sent
from lingbot_triton.simulated.marks import Mark, write_mark

FINGERPRINT = 77


def started(last_chunk: int | None = 5) -> Ledger:
    ledger = Ledger(FINGERPRINT, last_chunk, window=2)
    ledger.sent.append(Sent("opening", start=True, statuses=["READY"], done=True))
    return ledger


def part(chunk: int, first: int, number: int, count: int, at: float) -> Response:
    """Marked frames that came together as part `number` of a chunk."""
    frames = np.zeros((count, 32, 48, 3), np.uint8)
    for index, frame in enumerate(frames):
        write_mark(frame, Mark(FINGERPRINT, chunk, first + index))
    return Response("FRAMES", "", chunk, first, frames, {"part": number, "parts": 3}, at)


def chunk(ledger: Ledger, index: int, first_frame: int, *, end: bool = False) -> Sent:
    """A control that was answered as it should be."""
    sent = Sent("control", index, end=end, done=True)
    frame, now = first_frame, 10.0 * index
    for number in range(3):
        count = 1 if index == number == 0 else 4
        sent.parts.append(part(index, frame, number, count, now + number))
        sent.statuses.append("FRAMES")
        frame += count
    ledger.sent.append(sent)
    return sent


def refused(ledger: Ledger, index: int | None, status: str, **more: bool | int) -> Sent:
    sent = Sent("request", index, statuses=[status], done=True, **more)  # type: ignore[arg-type]
    ledger.sent.append(sent)
    return sent


def closed(ledger: Ledger, chunks: int, frames: int, reason: str = "end") -> Sent:
    sent = refused(ledger, None, "CLOSED", end=True)
    sent.info = {"reason": reason, "chunks": chunks, "frames": frames}
    return sent


def good() -> Ledger:
    """Three chunks among requests that had to be refused."""
    ledger = started()
    chunk(ledger, 0, 0)
    refused(ledger, 0, "DUPLICATE")
    refused(ledger, 3, "OUT_OF_ORDER")
    refused(ledger, 1, "BAD_REQUEST", good=False)
    refused(ledger, 1, "NO_SESSION", foreign=True)
    chunk(ledger, 1, 9)
    refused(ledger, 2, "WINDOW_FULL", unanswered_before=2)
    chunk(ledger, 2, 21)
    closed(ledger, 3, 33)
    refused(ledger, 3, NO_SEQUENCE)
    return ledger


def test_a_good_history_has_no_violation() -> None:
    assert list(good().violations()) == []


Harm = Callable[[Ledger], None]


def _lost(ledger: Ledger) -> None:
    del ledger.sent[6].parts[1]


def _repeated(ledger: Ledger) -> None:
    parts = ledger.sent[6].parts
    parts.append(replace(parts[2], received_at=parts[2].received_at + 1))


def _reordered(ledger: Ledger) -> None:
    parts = ledger.sent[6].parts
    parts[0], parts[1] = (
        replace(parts[1], received_at=parts[0].received_at),
        replace(parts[0], received_at=parts[1].received_at),
    )


def _foreign_frames(ledger: Ledger) -> None:
    first = ledger.sent[6].parts[0]
    write_mark(first.frames[0], Mark(78, first.chunk_index, first.frame_index))


def _other_chunk(ledger: Ledger) -> None:
    parts = ledger.sent[6].parts
    parts[0] = replace(parts[0], chunk_index=2)


def _unanswered(ledger: Ledger) -> None:
    ledger.sent[6].done = False


def _admitted_twice(ledger: Ledger) -> None:
    ledger.sent[2].statuses = ["FRAMES"]
    ledger.sent[2].parts = ledger.sent[1].parts


def _admitted_early(ledger: Ledger) -> None:
    ledger.sent[3].statuses = ["DUPLICATE"]


def _malformed_admitted(ledger: Ledger) -> None:
    ledger.sent[4].parts = ledger.sent[6].parts


def _foreign_admitted(ledger: Ledger) -> None:
    ledger.sent[5].statuses = ["CLOSED"]


def _window_full_too_soon(ledger: Ledger) -> None:
    ledger.sent[7].unanswered_before = 1


def _failed_by_itself(ledger: Ledger) -> None:
    ledger.sent[7].statuses = ["SESSION_FAILED"]


def _dropped(ledger: Ledger) -> None:
    ledger.sent[7].statuses = [DROPPED]


def _wrong_summary(ledger: Ledger) -> None:
    ledger.sent[9].info["frames"] = 32


def _end_not_closed(ledger: Ledger) -> None:
    ledger.sent[9].statuses = ["BAD_REQUEST"]


def _alive_after_end(ledger: Ledger) -> None:
    ledger.sent[10].statuses = ["OUT_OF_ORDER"]


HARMS: dict[Harm, str] = {
    _lost: "came as parts [0, 2]",
    _repeated: "came as parts [0, 1, 2, 2]",
    _reordered: "frame 13 came where 9 is next",
    _foreign_frames: "a frame is marked Mark(fingerprint=78",
    _other_chunk: "parts are of chunks [2, 1, 1]: control chunk 1",
    _unanswered: "no final response: control chunk 1",
    _admitted_twice: "the response should be DUPLICATE",
    _admitted_early: "the response should be OUT_OF_ORDER",
    _malformed_admitted: "frames where there can be none",
    _foreign_admitted: "the response should be NO_SESSION",
    _window_full_too_soon: "the response should be FRAMES: request chunk 2",
    _failed_by_itself: "the response should be FRAMES or WINDOW_FULL",
    _dropped: "the response should be FRAMES or WINDOW_FULL",
    _wrong_summary: "the summary says ('end', 3, 32), here came (3, 33)",
    _end_not_closed: "END was not answered with CLOSED",
    _alive_after_end: "the response should be NO_SESSION or SequenceEnded",
}


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
def test_every_harm_is_found(harm: Harm) -> None:
    ledger = good()
    harm(ledger)
    assert any(HARMS[harm] in sentence for sentence in ledger.violations())


def test_the_length_limit_is_expected_at_the_end_only() -> None:
    ledger = started(last_chunk=0)
    refused(ledger, 0, "LENGTH_LIMIT")
    assert list(ledger.violations()) != []
    ledger = started(last_chunk=0)
    chunk(ledger, 0, 0)
    refused(ledger, 1, "LENGTH_LIMIT")
    assert list(ledger.violations()) == []


def test_a_failure_is_tolerated_where_a_worker_died_but_no_frames_after_it() -> None:
    ledger = started()
    chunk(ledger, 0, 0)
    sent = chunk(ledger, 1, 9)
    del sent.parts[1:], sent.statuses[1:]
    sent.statuses.append("STAGE_FAILED")
    refused(ledger, 2, "SESSION_FAILED")
    closed(ledger, 1, 13, reason="failed")
    assert list(ledger.violations()) != []
    ledger.tolerated.update(FAILURES)
    assert list(ledger.violations()) == []
    chunk(ledger, 2, 13)
    assert any("frames where there can be none" in sentence for sentence in ledger.violations())


def test_a_refused_opening_leaves_no_session_behind() -> None:
    ledger = started()
    ledger.sent[0].statuses = ["SESSION_LIMIT"]
    refused(ledger, 0, "NO_SESSION")
    assert ledger.refused
    assert list(ledger.violations()) == []
    ledger.sent[1].statuses = ["DUPLICATE"]
    assert any("the response should be NO_SESSION" in sentence for sentence in ledger.violations())


def test_the_next_index_counts_what_will_be_admitted() -> None:
    ledger = started()
    chunk(ledger, 0, 0)
    ledger.sent.append(Sent("control", 1))
    ledger.sent.append(Sent("skip", 4))
    ledger.sent.append(Sent("control", 2))
    assert (ledger.next_index(), ledger.unanswered()) == (3, 3)
    ledger.sent[-1].statuses = ["WINDOW_FULL"]
    assert (ledger.next_index(), ledger.unanswered()) == (2, 2)


def test_silence_is_what_lies_between_admitted_requests() -> None:
    ledger = started()
    ledger.sent[0].at = 0.0
    chunk(ledger, 0, 0).at = 1.0  # its last frames come at 2
    for at in (3.0, 6.0):
        refused(ledger, 0, "DUPLICATE").at = at
    assert ledger.longest_silence() == 4.0


def test_errors_without_an_answer_have_names() -> None:
    errors = (SequenceEnded("no"), Cancelled("no"), Disconnected("no"), TritonError("no"))
    sent = Sent("control")
    for error in errors:
        sent.fail(error)
    assert sent.done
    assert sent.statuses == [NO_SEQUENCE, DROPPED, LEFT, "TritonError"]


def test_the_history_tells_every_request_and_answer() -> None:
    lines = good().history()
    assert len(lines) == 11
    assert "request chunk 0 -> DUPLICATE" in lines[2]
    assert lines[9].endswith("request end -> CLOSED")
