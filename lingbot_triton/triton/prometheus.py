"""`metrics.Observer` over Triton's custom metrics."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

import triton_python_backend_utils as pb_utils

from lingbot_triton.metrics import METRICS, SECONDS_BUCKETS, Kind, MetricSpec

FREQUENT_SECONDS = 0.25
"""What is measured often waits so long, or until something else is reported: a whole chunk at a
person's pace is over by then."""
_PAUSE_SECONDS = 0.0002
"""Between two updates, so that whoever waits for Python's lock gets it."""

Update = tuple[MetricSpec, float, str]


class TritonMetrics:
    """Every update is a round trip to the server's process, during which Python's lock is held.

    So a thread of its own makes them, in order, and away from the frames where it can.
    """

    def __init__(self, specs: Iterable[MetricSpec] = METRICS) -> None:
        family = pb_utils.MetricFamily  # exists only once a model is being initialized
        kinds = {
            Kind.COUNTER: family.COUNTER,
            Kind.GAUGE: family.GAUGE,
            Kind.HISTOGRAM: family.HISTOGRAM,
        }
        self._families = {
            spec: family(name=spec.name, description=spec.text, kind=kinds[spec.kind])
            for spec in specs
        }
        self._series: dict[tuple[MetricSpec, str], Any] = {}
        for spec in self._families:
            # A series that appears only with its first event cannot be alerted on before.
            for label in spec.values or (() if spec.label else ("",)):
                self._create(spec, label)
        self._gauges: dict[tuple[MetricSpec, str], float] = {}
        self._pending: deque[Update] = deque()
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._report, name="metrics", daemon=True)
        self._thread.start()

    def add(self, metric: MetricSpec, value: float = 1, label: str = "") -> None:
        self._pending.append((metric, value, label))
        if not metric.frequent:
            self._wake.set()

    def set(self, metric: MetricSpec, value: float, label: str = "") -> None:
        if self._gauges.get((metric, label)) != value:
            self._gauges[metric, label] = value
            self.add(metric, value, label)

    def _report(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait(FREQUENT_SECONDS)
            self._wake.clear()
            noted = [self._pending.popleft() for _ in range(len(self._pending))]
            for update in combined(noted):
                if self._stopping.is_set():
                    break
                self._update(*update)
                time.sleep(_PAUSE_SECONDS)

    def _update(self, metric: MetricSpec, value: float, label: str) -> None:
        series = self._series.get((metric, label)) or self._create(metric, label)
        if metric.kind is Kind.COUNTER:
            series.increment(value)
        elif metric.kind is Kind.GAUGE:
            series.set(value)
        else:
            series.observe(value)

    def _create(self, metric: MetricSpec, label: str) -> Any:
        labels = {metric.label: label} if metric.label else {}
        more = {"buckets": list(SECONDS_BUCKETS)} if metric.kind is Kind.HISTOGRAM else {}
        self._series[metric, label] = series = self._families[metric].Metric(labels=labels, **more)
        return series

    def shut_down(self) -> None:
        """Give every series and family back: whichever outlives `finalize` crashes its process."""
        self._stopping.set()
        self._wake.set()
        self._thread.join()
        self._series.clear()
        self._families.clear()


def combined(updates: Iterable[Update]) -> list[Update]:
    """The same in order: of a counter's or a gauge's, only the last, with all that was added."""
    merged: dict[Any, Update] = {}
    for number, (metric, value, label) in enumerate(updates):
        key = number if metric.kind is Kind.HISTOGRAM else (metric, label)
        before = merged.pop(key, None)
        if before is not None and metric.kind is Kind.COUNTER:
            value += before[1]
        merged[key] = metric, value, label
    return list(merged.values())
