"""A reply never asks Triton whether it was cancelled once its last response is on the way.

`is_cancelled` then reads what the server has already freed, and takes the whole server down.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from lingbot_triton.orchestrator.requests import CLOSED, Answer


class Sender:
    """Triton's response sender, whose sending lasts until it is let go."""

    def __init__(self) -> None:
        self.sending, self.go_on = threading.Event(), threading.Event()
        self.final = False
        self.cancelled = False

    def send(self, response: Any = None, flags: int = 0) -> None:
        self.final = bool(flags)
        self.sending.set()
        assert self.go_on.wait(60)

    def is_cancelled(self) -> bool:
        assert not self.final, "the server would have crashed"
        return self.cancelled


@pytest.fixture
def reply_class(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`TritonReply`, with stand-ins for what only a model's process has."""
    backend = SimpleNamespace(
        TRITONSERVER_RESPONSE_COMPLETE_FINAL=1,
        InferenceResponse=lambda tensors: tensors,
        Tensor=lambda name, value: (name, value),
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", backend)
    before = set(sys.modules)
    from lingbot_triton.triton.orchestrator_model import TritonReply

    yield TritonReply
    for name in set(sys.modules) - before:  # they hold the stand-ins
        if name.startswith("lingbot_triton.triton"):
            del sys.modules[name]


def test_cancellation_is_asked_for_only_until_the_last_response_leaves(reply_class: Any) -> None:
    sender = Sender()
    with ThreadPoolExecutor(1) as pool:
        reply = reply_class(sender, pool)
        assert reply.cancelled() is False
        sender.cancelled = True
        assert reply.cancelled() is True

        async def finish() -> None:
            sent = asyncio.ensure_future(reply.send(Answer(CLOSED), last=True))
            await asyncio.to_thread(sender.sending.wait, 60)
            assert reply.cancelled() is False, "while it is being sent"
            sender.go_on.set()
            await sent

        asyncio.run(finish())
        assert sender.final
        assert reply.cancelled() is False
