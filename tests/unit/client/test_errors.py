from __future__ import annotations

import inspect

import pytest
from lingbot_client import errors

CODES = {
    "BAD_REQUEST": errors.BadRequest,
    "DUPLICATE": errors.Duplicate,
    "OUT_OF_ORDER": errors.OutOfOrder,
    "WINDOW_FULL": errors.WindowFull,
    "LENGTH_LIMIT": errors.LengthLimit,
    "SESSION_LIMIT": errors.SessionLimit,
    "NO_SESSION": errors.NoSession,
    "SESSION_FAILED": errors.SessionFailed,
    "STAGE_FAILED": errors.StageFailed,
    "STAGE_TIMEOUT": errors.StageTimeout,
    "SHUTTING_DOWN": errors.ShuttingDown,
}


def test_every_code_has_its_exception() -> None:
    assert errors.BY_CODE == CODES


@pytest.mark.parametrize(("code", "kind"), CODES.items())
def test_a_status_becomes_its_exception_with_the_servers_sentence(
    code: str, kind: type[errors.StatusError]
) -> None:
    error = errors.from_status(code, "chunk 4 came, 3 is next")
    assert type(error) is kind
    assert str(error) == "chunk 4 came, 3 is next"


def test_an_unknown_status_is_a_protocol_error_that_names_it() -> None:
    error = errors.from_status("TEAPOT", "short and stout")
    assert type(error) is errors.ProtocolError
    assert "TEAPOT" in str(error)
    assert "short and stout" in str(error)


def test_a_missing_start_flag_means_no_session() -> None:
    message = (
        "inference request for sequence 31 to model 'orchestrator' must specify the START flag "
        "on the first request of the sequence"
    )
    assert type(errors.from_triton(message)) is errors.SequenceEnded
    assert type(errors.from_triton("unexpected shape for input 'poses'")) is errors.TritonError


def test_the_tree_in_the_docstring_names_every_exception_and_whether_it_ends_a_session() -> None:
    drawn = {
        words[0]: "*" in words
        for line in (errors.__doc__ or "").splitlines()
        if "──" in line
        for words in [line.split("── ")[1].split()]
    }
    kinds = [
        kind
        for kind in vars(errors).values()
        if inspect.isclass(kind) and issubclass(kind, errors.WorldError)
    ]
    actual = {kind.__name__: kind.ends_session for kind in kinds if kind is not errors.WorldError}
    inherited = {"ServerUnavailable", "Disconnected"}  # marked once, at ConnectionFailed
    assert drawn.keys() == actual.keys()
    assert {name: ends for name, ends in drawn.items() if name not in inherited} == {
        name: ends for name, ends in actual.items() if name not in inherited
    }
