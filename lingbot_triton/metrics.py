"""What the service measures of itself: every metric is written once, here.

The service calls an `Observer`; the Triton layer turns the calls into Prometheus metrics.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from lingbot_triton.errors import BY_CODE
from lingbot_triton.protocol import EndReason
from lingbot_triton.stage import STAGES, TIMED_CALLS

STATES = ("opening", "open", "closing")
STAGE_NAMES = tuple(stage.name for stage in STAGES)
SEND = "send"
"""Label of the calls that send a part of a chunk to the client."""


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class MetricSpec:
    """One family: its label's values are a fixed set, so that series stay few."""

    name: str
    kind: Kind
    description: str
    label: str | None = None
    values: tuple[str, ...] = ()
    """The label's values; each is exported from the start, as 0. Empty where workers name them."""


SESSIONS = MetricSpec("lingbot_sessions", Kind.GAUGE, "Sessions by state", "state", STATES)
OPENED = MetricSpec("lingbot_sessions_opened_total", Kind.COUNTER, "Sessions that became ready")
CLOSED = MetricSpec(
    "lingbot_sessions_closed_total",
    Kind.COUNTER,
    "Sessions fully released, by reason",
    "reason",
    tuple(reason.value for reason in EndReason),
)
REJECTIONS = MetricSpec(
    "lingbot_rejections_total",
    Kind.COUNTER,
    "Requests answered with an error code",
    "code",
    tuple(BY_CODE),
)
CHUNKS = MetricSpec("lingbot_chunks_total", Kind.COUNTER, "Chunks sent whole")
FRAMES = MetricSpec("lingbot_frames_total", Kind.COUNTER, "Video frames sent")
CONDITIONS = MetricSpec(
    "lingbot_conditions_alive", Kind.GAUGE, "Conditions requested, held or in use, all sessions"
)
CONDITION_BYTES = MetricSpec(
    "lingbot_condition_bytes", Kind.GAUGE, "Bytes of conditions that sessions hold"
)
STEADY = MetricSpec(
    "lingbot_steady_conditions_total", Kind.COUNTER, "Chunks served by a steady condition"
)
FIRST_FRAMES = MetricSpec(
    "lingbot_first_frames_seconds", Kind.HISTOGRAM, "Acceptance of a control to its first frames"
)
WHOLE_CHUNK = MetricSpec(
    "lingbot_chunk_seconds", Kind.HISTOGRAM, "Acceptance of a control to its last frames"
)
CONDITION_WAIT = MetricSpec(
    "lingbot_condition_wait_seconds", Kind.HISTOGRAM, "Time controls waited for their condition"
)
STAGE = MetricSpec(
    "lingbot_stage_seconds",
    Kind.HISTOGRAM,
    "Time of one call, waiting included",
    "stage",
    (*TIMED_CALLS, SEND),
)
CALLS = MetricSpec("lingbot_calls_in_flight", Kind.GAUGE, "Stage calls under way")
RESTARTS = MetricSpec(
    "lingbot_worker_restarts_total",
    Kind.COUNTER,
    "Workers reloaded after their death",
    "model",
    STAGE_NAMES,
)
UNAVAILABLE = MetricSpec(
    "lingbot_stage_away",
    Kind.GAUGE,
    "1 while a stage takes no new session, as its worker has died",
    "model",
    STAGE_NAMES,
)

METRICS = (
    SESSIONS,
    OPENED,
    CLOSED,
    REJECTIONS,
    CHUNKS,
    FRAMES,
    CONDITIONS,
    CONDITION_BYTES,
    STEADY,
    FIRST_FRAMES,
    WHOLE_CHUNK,
    CONDITION_WAIT,
    STAGE,
    CALLS,
    RESTARTS,
    UNAVAILABLE,
)

WORKER_STATES = MetricSpec(
    "lingbot_worker_states", Kind.GAUGE, "Session states held by a worker process", "instance"
)
"""The one family that the workers report themselves."""

SECONDS_BUCKETS = (0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.75, 1.0, 1.5, 2.0, 4.0, 10.0, 60.0)


class Observer(Protocol):
    """Takes measurements; it must return at once."""

    def add(self, metric: MetricSpec, value: float = 1, label: str = "") -> None:
        """Add to a counter, or record a histogram's value in seconds."""

    def set(self, metric: MetricSpec, value: float, label: str = "") -> None:
        """Set a gauge."""


class NoObserver:
    """Measures nothing."""

    def add(self, metric: MetricSpec, value: float = 1, label: str = "") -> None:
        pass

    def set(self, metric: MetricSpec, value: float, label: str = "") -> None:
        pass
