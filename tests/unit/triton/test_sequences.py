from __future__ import annotations

from lingbot_triton.protocol import ORCHESTRATOR
from lingbot_triton.triton.sequences import OpenSequences


def opened(*session_ids: int | str) -> OpenSequences:
    sequences = OpenSequences()
    for now, session_id in enumerate(session_ids):
        sequences.note(session_id, ends=False, now=now)
    return sequences


def test_end_closes_and_a_request_makes_young() -> None:
    sequences = opened("a", "b", 3)
    sequences.note("a", ends=False, now=5)
    sequences.note("b", ends=True, now=6)
    assert list(sequences) == [3, "a"]


def test_what_triton_has_reaped_is_forgotten() -> None:
    sequences = opened("a", "b")
    sequences.note("c", ends=False, now=ORCHESTRATOR.idle_seconds + 0.5)
    assert list(sequences) == ["b", "c"]
