from __future__ import annotations

from lingbot_triton.protocol import ORCHESTRATOR
from lingbot_triton.session import SessionId
from lingbot_triton.triton.sequences import OpenSequences


def opened(*session_ids: SessionId, live: tuple[SessionId, ...] = ()) -> OpenSequences:
    sequences = OpenSequences(lambda session_id: session_id in live, kept=2)
    for now, session_id in enumerate(session_ids):
        sequences.note(session_id, ends=False, now=now)
    return sequences


def test_the_oldest_sequences_without_a_session_are_surplus_once() -> None:
    sequences = opened("a", "b", 3, "c")
    assert sequences.take_surplus() == ["a", "b"]
    assert sequences.take_surplus() == []
    assert list(sequences) == [3, "c"]


def test_a_sequence_with_a_session_is_never_surplus() -> None:
    sequences = opened("a", "b", "c", "d", live=("a", "c"))
    assert sequences.take_surplus() == []
    sequences.note("e", ends=False, now=5)
    assert sequences.take_surplus() == ["b"]
    assert list(sequences) == ["a", "c", "d", "e"]


def test_end_closes_and_a_request_makes_young() -> None:
    sequences = opened("a", "b", "c", "d")
    sequences.note("a", ends=False, now=5)
    sequences.note("c", ends=True, now=6)
    assert sequences.take_surplus() == ["b"]
    assert list(sequences) == ["d", "a"]


def test_what_triton_has_reaped_is_forgotten() -> None:
    sequences = opened("a", "b")
    sequences.note("c", ends=False, now=ORCHESTRATOR.idle_seconds + 0.5)
    assert list(sequences) == ["b", "c"]
