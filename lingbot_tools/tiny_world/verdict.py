"""Measured values against what is wanted of them, as a table and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.table import Table

from lingbot_tools.tiny_world.measures import Values

SHARPNESS_BOUNDS = (0.6, 1.4)
CONTRAST_BOUNDS = (0.7, 1.3)
COLOUR_SHIFT_BOUND = 20.0
"""Of 255, each channel's mean."""
PERIOD_BOUND, FIRST_FRAMES_BOUND = 0.75, 0.4
"""Seconds; a chunk is 0.75 s of video."""


@dataclass(frozen=True)
class Wanted:
    """One figure and its bar."""

    name: str
    value: float
    low: float = -math.inf
    high: float = math.inf

    @property
    def met(self) -> bool:
        return self._met(self.value)

    def _met(self, value: float) -> bool:
        return self.low <= value <= self.high  # NaN never is

    @property
    def shown(self) -> str:
        """The value to three digits, or to as many as show whether the bar is met."""
        texts = [f"{self.value:.{digits}g}" for digits in range(3, 18)]
        return next((text for text in texts if self._met(float(text)) == self.met), texts[0])

    @property
    def wanted(self) -> str:
        if math.isinf(self.low):
            return f"≤ {self.high:g}"
        return f"≥ {self.low:g}" if math.isinf(self.high) else f"{self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class RealTime:
    """Through the whole server, in seconds."""

    period: float
    first_frames: float


def judge(values: Values, real_time: RealTime | None) -> list[Wanted]:
    """All figures; real time is left out where it was not measured."""
    generated = _mean(values.generated)
    still = _mean(values.changes[""])
    least = min(_mean(changes) for key, changes in values.changes.items() if key)
    rows = [
        Wanted("VAE reconstruction, PSNR in dB", _mean(values.reconstruction), 26),
        Wanted("generated over the frozen first frame, dB", generated - _mean(values.frozen), 3),
        Wanted("generated over other keys, dB", generated - _mean(values.other_keys), 3),
        Wanted("turns that go the right way", _mean(values.turned_right), 0.95),
        Wanted("forward chunks that enlarge", _mean(values.enlarged), 0.9),
        Wanted("change standing still, of the least of any key", still / least, high=0.95),
    ]
    for name, ratios, (low, high) in (
        ("sharpness after 30 chunks, of the truth's", values.sharpness, SHARPNESS_BOUNDS),
        ("contrast after 30 chunks, of the truth's", values.contrast, CONTRAST_BOUNDS),
    ):
        for which, value in (("least", min(ratios)), ("most", max(ratios))):
            rows.append(Wanted(f"{name}, {which}", value, low, high))
    shift = max(values.colour_shift)
    rows.append(Wanted("colour shift after 30 chunks, of 255", shift, high=COLOUR_SHIFT_BOUND))
    if real_time is not None:
        rows.append(Wanted("chunk period, s", real_time.period, high=PERIOD_BOUND))
        rows.append(Wanted("first frames, s", real_time.first_frames, high=FIRST_FRAMES_BOUND))
    return rows


def table(rows: Sequence[Wanted]) -> Table:
    drawn = Table("measure", "value", "wanted", "")
    for row in rows:
        drawn.add_row(row.name, row.shown, row.wanted, "met" if row.met else "NOT MET")
    return drawn


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan
