"""Updates of metrics: made in order, away from the frames where they are many, none lost."""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from lingbot_triton import metrics

MODULE = "lingbot_triton.triton.prometheus"
SENT = metrics.CALLS_TIMED[-1]


class Family:
    """Triton's metric family; every update of a series is noted down."""

    COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
    updates: list[tuple[str, str, float]]

    def __init__(self, name: str, **_: Any) -> None:
        self.name = name

    def Metric(self, labels: dict[str, str], **_: Any) -> Any:
        def update(value: float) -> None:
            Family.updates.append((self.name, "".join(labels.values()), value))

        return SimpleNamespace(increment=update, set=update, observe=update)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    Family.updates = []
    backend = SimpleNamespace(MetricFamily=Family)
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", backend)
    yield importlib.import_module(MODULE)
    del sys.modules[MODULE]  # it holds the stand-in


@pytest.fixture
def reported(module: Any) -> Iterator[Any]:
    found = module.TritonMetrics()
    yield found
    found.shut_down()


def arrived(count: int, seconds: float = 10.0) -> list[tuple[str, str, float]]:
    deadline = time.monotonic() + seconds
    while len(Family.updates) < count:
        assert time.monotonic() < deadline, Family.updates
        time.sleep(0.005)
    return Family.updates


def test_what_is_measured_often_waits_for_something_else(
    module: Any, reported: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FREQUENT_SECONDS", 3600)
    reported.set(metrics.SESSIONS, 3, "open")  # the thread's next wait is the long one
    arrived(1)
    reported.set(metrics.CALLS, 3)
    reported.add(metrics.STAGE, 0.25, SENT)
    reported.add(metrics.FRAMES, 9)
    reported.add(metrics.STAGE, 0.5, SENT)
    reported.add(metrics.FRAMES, 12)
    reported.set(metrics.CALLS, 1)
    time.sleep(0.1)
    assert len(Family.updates) == 1
    reported.set(metrics.SESSIONS, 0, "open")
    assert arrived(6)[1:] == [
        (metrics.STAGE.name, SENT, 0.25),
        (metrics.STAGE.name, SENT, 0.5),
        (metrics.FRAMES.name, "", 21),
        (metrics.CALLS.name, "", 1),
        (metrics.SESSIONS.name, "open", 0),
    ]


def test_what_is_measured_often_is_reported_by_itself(reported: Any) -> None:
    reported.add(metrics.CHUNKS)
    assert arrived(1) == [(metrics.CHUNKS.name, "", 1)]


def test_a_gauge_that_stays_is_not_reported_again(reported: Any) -> None:
    for value in (2, 2, 2, 1):
        reported.set(metrics.CALLS, value)
        arrived(1 if value == 2 else 2)
    assert Family.updates == [(metrics.CALLS.name, "", 2), (metrics.CALLS.name, "", 1)]


def test_its_thread_ends_with_it(module: Any) -> None:
    before = threading.active_count()
    for _ in range(3):
        module.TritonMetrics().shut_down()
    assert threading.active_count() == before
