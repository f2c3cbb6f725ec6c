"""A response sink never asks Triton whether it was cancelled once its last response is on the way.

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

from lingbot_triton.orchestrator.requests import CLOSED, Response


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
def sink_class(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`TritonResponseSink`, with stand-ins for what only a model's process has."""
    backend = SimpleNamespace(
        TRITONSERVER_RESPONSE_COMPLETE_FINAL=1,
        InferenceResponse=lambda tensors: tensors,
        Tensor=lambda name, value: (name, value),
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", backend)
    before = set(sys.modules)
    from lingbot_triton.triton.response_sink import TritonResponseSink

    yield TritonResponseSink
    for name in set(sys.modules) - before:  # they hold the stand-ins
        if name.startswith("lingbot_triton.triton"):
            del sys.modules[name]


def test_cancellation_is_asked_for_only_until_the_last_response_leaves(sink_class: Any) -> None:
    sender = Sender()
    with ThreadPoolExecutor(1) as pool:
        sink = sink_class(sender, pool)
        assert sink.cancelled() is False
        sender.cancelled = True
        assert sink.cancelled() is True

        async def finish() -> None:
            sent = asyncio.ensure_future(sink.send(Response(CLOSED), final=True))
            await asyncio.to_thread(sender.sending.wait, 60)
            assert sink.cancelled() is False, "while it is being sent"
            sender.go_on.set()
            await sent

        asyncio.run(finish())
        assert sender.final
        assert sink.cancelled() is False
