"""Measured chunks, and the figures by which such systems are compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

SECONDS_PER_CHUNK = 0.75
"""Playing time of a chunk: 12 frames at 16 frames per second."""


@dataclass(frozen=True)
class ChunkSample:
    """One control and what came of it; times here are seconds of `time.monotonic`."""

    index: int
    frames: int
    sent_at: float
    first_at: float
    """Arrival of the first frames, infinite where none came."""
    last_at: float
    """Arrival of the last frames, or of the error."""
    server_ms: dict[str, float] = field(default_factory=dict)
    """Server times: queue, condition_wait, denoise, first_frames and whole_chunk."""
    error: str = ""

    @property
    def ok(self) -> bool:
        return not self.error


@dataclass(frozen=True)
class Distribution:
    """A figure over chunks, in milliseconds; percentiles are interpolated linearly."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    largest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Distribution:
        """Summarise; a failed chunk counts as an infinite value. Without values, all is NaN."""
        if not values:
            nan = math.nan
            return cls(0, nan, nan, nan, nan, nan, nan)
        p50, p90, p95, p99 = (percentile(values, share) for share in (50, 90, 95, 99))
        return cls(len(values), sum(values) / len(values), p50, p90, p95, p99, max(values))


def percentile(values: Sequence[float], share: float) -> float:
    """The percentile `share` (0 to 100), linearly interpolated; values may be infinite."""
    if math.isinf(np.percentile(values, share, method="higher")):
        return math.inf
    # The value above is finite; numpy would multiply an infinite one after it by 0.
    return float(np.percentile(np.minimum(values, np.finfo(float).max), share))


@dataclass(frozen=True)
class Figures:
    """All figures of some sessions; failed chunks stay in every denominator."""

    chunks: int
    failures: int
    first_frames_server: Distribution
    """From the control's acceptance to its first frames decoded: the server's clock."""
    first_frames_client: Distribution
    """From sending the control to the arrival of its first frames: the client's clock."""
    whole_chunk_server: Distribution
    whole_chunk_client: Distribution
    period: Distribution
    """From the last frames of a chunk to the last frames of the next: the client's clock."""
    condition_wait: Distribution
    compute_fps: float
    """Weighted: all frames over all seconds in which a session waited for them."""
    real_time_factor: float
    """P95 of the chunk period over a chunk's playing time; below 1 keeps up with playing."""


DISTRIBUTIONS = (
    ("acceptance → first frames", "server", "first_frames_server"),
    ("sending → first frames", "client", "first_frames_client"),
    ("acceptance → whole chunk", "server", "whole_chunk_server"),
    ("sending → whole chunk", "client", "whole_chunk_client"),
    ("chunk period", "client", "period"),
    ("condition wait", "server", "condition_wait"),
)
"""Titles, whose clock, and the fields of `Figures` that are distributions."""


def figures(sessions: Sequence[Sequence[ChunkSample]], warm_up: int) -> Figures:
    """Figures over the chunks of `sessions`, without the first `warm_up` chunks of each."""
    measured = [sample for samples in sessions for sample in samples[warm_up:]]
    pairs = [pair for samples in sessions for pair in pairwise(samples) if pair[1].index >= warm_up]
    period = Distribution.of([_period(before, after) for before, after in pairs])
    return Figures(
        chunks=len(measured),
        failures=sum(not sample.ok for sample in measured),
        first_frames_server=_server(measured, "first_frames"),
        first_frames_client=_client(measured, "first_at"),
        whole_chunk_server=_server(measured, "whole_chunk"),
        whole_chunk_client=_client(measured, "last_at"),
        period=period,
        condition_wait=_server(measured, "condition_wait"),
        compute_fps=compute_fps(sessions, warm_up),
        real_time_factor=period.p95 / 1000 / SECONDS_PER_CHUNK,
    )


def compute_fps(sessions: Sequence[Sequence[ChunkSample]], warm_up: int) -> float:
    """Σ frames / Σ seconds from acceptance to the whole chunk, by the server's clock.

    A control sent ahead waits behind the chunk before it; that time counts for that chunk only.
    """
    frames, seconds = 0, 0.0
    for samples in sessions:
        busy_until = -math.inf
        for sample in samples:
            if sample.index >= warm_up:
                frames += sample.frames if sample.ok else 0
                seconds += _seconds(sample) - max(0.0, busy_until - sample.sent_at)
            busy_until = sample.sent_at + _seconds(sample)
    return frames / seconds if seconds > 0 else math.nan


def _seconds(sample: ChunkSample) -> float:
    """What a chunk took; a failed one took until its error came."""
    given = sample.server_ms.get("whole_chunk") if sample.ok else None
    return sample.last_at - sample.sent_at if given is None else given / 1000


def _period(before: ChunkSample, after: ChunkSample) -> float:
    return (after.last_at - before.last_at) * 1000 if before.ok and after.ok else math.inf


def _server(samples: Sequence[ChunkSample], name: str) -> Distribution:
    """A server time over chunks that have it; failed ones count as infinite."""
    return Distribution.of(
        [
            sample.server_ms[name] if sample.ok else math.inf
            for sample in samples
            if not sample.ok or name in sample.server_ms
        ]
    )


def _client(samples: Sequence[ChunkSample], name: str) -> Distribution:
    return Distribution.of(
        [
            (getattr(sample, name) - sample.sent_at) * 1000 if sample.ok else math.inf
            for sample in samples
        ]
    )


def plain(value: Any) -> Any:
    """What is infinite or not a number becomes null, since JSON has neither."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
    return value
