"""The cursors, the prefetch window and the session table, without a pipeline."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from lingbot_triton.errors import (
    Duplicate,
    LengthLimit,
    NoSession,
    OutOfOrder,
    SessionFailed,
    SessionLimit,
    StageFailed,
    WindowFull,
    WorldError,
)
from lingbot_triton.options import SessionOptions
from lingbot_triton.orchestrator.cursors import Condition, ConditionWindow, ControlCursor
from lingbot_triton.orchestrator.session import Session
from lingbot_triton.orchestrator.table import SessionTable
from lingbot_triton.protocol import EndReason
from tests.unit.orchestrator.virtual_time import run


def make_session(session_id: int | str = 1, token: bytes = b"") -> Session:
    return Session(
        session_id, token, SessionOptions(), 3, ControlCursor(2, 6), ConditionWindow(2, 6), 0.0
    )


@pytest.mark.parametrize(
    ("index", "error", "sentence"),
    [
        (0, Duplicate, "chunk 0 was admitted before; the next is 1"),
        (2, OutOfOrder, "chunk 2 is not next; the next is 1"),
        (7, OutOfOrder, "chunk 7 is not next; the next is 1"),
    ],
)
def test_a_wrong_index_moves_nothing(index: int, error: type[WorldError], sentence: str) -> None:
    cursor = ControlCursor(window=2, last=6)
    cursor.admit(0)
    with pytest.raises(error, match=sentence):
        cursor.admit(index)
    assert (cursor.next_index, cursor.waiting) == (1, 1)


def test_the_window_counts_controls_ahead_of_their_denoise() -> None:
    cursor = ControlCursor(window=2, last=None)
    cursor.admit(0)
    cursor.admit(1)
    with pytest.raises(WindowFull, match="2 controls wait for their denoise, at most 2 may"):
        cursor.admit(2)
    cursor.start()
    cursor.admit(2)
    assert (cursor.next_index, cursor.waiting) == (3, 2)


def test_the_last_chunk_is_the_last() -> None:
    cursor = ControlCursor(window=2, last=0)
    cursor.admit(0)
    cursor.start()
    with pytest.raises(LengthLimit, match="chunk 1 is past the session's last chunk, 0"):
        cursor.admit(1)


def test_conditions_never_exceed_the_depth_and_come_in_order() -> None:
    async def scenario() -> None:
        window = ConditionWindow(depth=2, last=3)
        taken = []
        for _ in range(4):
            while window.may_request:
                index, future = window.request()
                window.arrived(future, Condition(index))
                assert window.outstanding <= 2
            taken.append((await window.take()).tensor)
            window.release()
        assert taken == [0, 1, 2, 3]
        assert not window.may_request
        assert window.outstanding == 0

    run(scenario())


def test_a_steady_condition_ends_the_requests_and_serves_for_ever() -> None:
    async def scenario() -> None:
        window = ConditionWindow(depth=2, last=None)
        _, first = window.request()
        _, second = window.request()
        window.arrived(first, Condition("a", bytes=10))
        window.arrived(second, Condition("b", steady=True, bytes=20))
        assert window.held_bytes == 30
        taken = []
        for _ in range(5):
            taken.append((await window.take()).tensor)
            window.release()
        assert taken == ["a", "b", "b", "b", "b"]
        assert not window.may_request
        assert window.held_bytes == 20
        window.discard()
        assert window.held_bytes == 0

    run(scenario())


def test_at_depth_zero_nothing_is_requested_ahead() -> None:
    window = ConditionWindow(depth=0, last=None)
    assert not window.may_request
    assert window.empty


def test_the_table_is_full_until_a_session_is_removed() -> None:
    table = SessionTable(limit=2)
    first, second = make_session(1), make_session(2)
    table.add(first)
    table.add(second)
    with pytest.raises(SessionLimit, match="2 sessions are open, at most 2 may be"):
        table.add(make_session(3))
    table.remove(first)
    table.add(make_session(3))
    assert len(table) == 2


def test_a_session_takes_over_its_id_even_from_a_full_table() -> None:
    table = SessionTable(limit=1)
    old, new = make_session("x"), make_session("x")
    assert table.add(old) is None
    assert table.add(new) is old
    assert table.find("x") is new
    table.remove(old)
    assert table.find("x") is new
    with pytest.raises(SessionLimit):
        table.add(make_session("y"))


def test_a_failed_session_is_remembered_and_a_closed_one_is_not() -> None:
    table = SessionTable(limit=4)
    closed, failed = make_session("closed"), make_session("failed", b"token")
    for session in (closed, failed):
        table.add(session)
    failed.fail(StageFailed("denoise failed"))
    for session in (closed, failed):
        session.end.reason = EndReason.END
        table.remove(session)
    with pytest.raises(NoSession, match="was closed, or never opened"):
        table.get("closed", b"")
    with pytest.raises(SessionFailed, match="the session has failed: denoise failed"):
        table.get("failed", b"token")
    with pytest.raises(NoSession, match="with this token"):
        table.get("failed", b"other")


def test_remembered_failures_are_bounded() -> None:
    table = SessionTable(limit=4)
    for number in range(SessionTable.REMEMBERED_FAILURES + 10):
        session = make_session(number)
        table.add(session)
        session.fail(StageFailed("gone"))
        table.remove(session)
    with pytest.raises(NoSession):
        table.get(9, b"")
    with pytest.raises(SessionFailed):
        table.get(10, b"")


def test_a_remembered_failure_holds_nothing_of_the_session() -> None:
    """The traceback of a failure reaches the picture, the condition and the latent."""
    table = SessionTable(limit=4)
    session = make_session("failed")
    table.add(session)
    session.fail(StageFailed("gone"))
    table.remove(session)
    released = weakref.ref(session)
    del session
    gc.collect()
    assert released() is None


def test_an_internal_error_is_not_told_to_the_client(caplog: pytest.LogCaptureFixture) -> None:
    session = make_session()
    session.fail(ValueError("/secret/path"))
    with pytest.raises(SessionFailed, match="the server met an internal error"):
        session.check()
    assert "/secret/path" in caplog.text


def test_a_call_outlives_the_task_that_waits_for_it() -> None:
    async def scenario() -> None:
        session = make_session()
        done: list[str] = []

        async def call() -> None:
            await asyncio.sleep(5)
            done.append("call")

        task = session.start(session.calls.run("denoise", call()))
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (task.cancelled(), len(session.calls), done) == (True, 1, [])
        await asyncio.sleep(5)
        assert (len(session.calls), done) == (0, ["call"])

    run(scenario())
