"""`metrics.Observer` over Triton's custom metrics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import triton_python_backend_utils as pb_utils

from lingbot_triton.metrics import METRICS, SECONDS_BUCKETS, Kind, MetricSpec
from lingbot_triton.triton.threads import thread_pool


class TritonMetrics:
    """Every update is a round trip to the server's process, so a thread of its own makes them."""

    def __init__(self, specs: Iterable[MetricSpec] = METRICS) -> None:
        family = pb_utils.MetricFamily  # exists only once a model is being initialized
        kinds = {
            Kind.COUNTER: family.COUNTER,
            Kind.GAUGE: family.GAUGE,
            Kind.HISTOGRAM: family.HISTOGRAM,
        }
        self._families = {
            spec: family(name=spec.name, description=spec.description, kind=kinds[spec.kind])
            for spec in specs
        }
        self._series: dict[tuple[MetricSpec, str], Any] = {}
        for spec in self._families:
            # A series that appears only with its first event cannot be alerted on before.
            for label in spec.values or (() if spec.label else ("",)):
                self._create(spec, label)
        self._gauges: dict[tuple[MetricSpec, str], float] = {}
        self._thread = thread_pool(1, "metrics")

    def add(self, metric: MetricSpec, value: float = 1, label: str = "") -> None:
        self._thread.submit(self._update, metric, value, label)

    def set(self, metric: MetricSpec, value: float, label: str = "") -> None:
        if self._gauges.get((metric, label)) != value:
            self._gauges[metric, label] = value
            self._thread.submit(self._update, metric, value, label)

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
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._series.clear()
        self._families.clear()
