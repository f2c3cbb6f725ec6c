"""Comparisons, their tolerances, and the JSON report of them."""

from __future__ import annotations

import json
import math
import resource
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

TOLERANCES = {
    "ids": 0.0,
    "schedule": 0.0,
    "noise": 0.0,
    "steady_chunk": 0.0,
    "context": 1e-5,
    "condition": 1e-5,
    "poses": 1e-6,
    "control": 1e-5,
    "flow": 2e-4,
    "latents": 2e-4,
    "kv": 2e-4,
    "frames_largest": 1.0,
    "frames_off_share": 1e-3,
    "frames_float": 0.05,
    "repeat": 0.0,
}
"""Largest absolute differences allowed, by kind.

`frames_*`: uint8 levels off; the share of values that are off at all; levels that uint8 frames are
from the ones the float frames are cut to. `steady_chunk` is in chunks.
"""


@dataclass(frozen=True)
class Check:
    """One comparison; it is right where the difference is at most the tolerance."""

    name: str
    kind: str
    difference: float

    @property
    def tolerance(self) -> float:
        return TOLERANCES[self.kind]

    @property
    def ok(self) -> bool:
        return self.difference <= self.tolerance  # not so for NaN


@dataclass
class Report:
    """All comparisons of one checkpoint with one folder of expectations."""

    checkpoint: str
    expected: str
    played_on: str
    checks: list[Check] = field(default_factory=list)
    not_compared: list[str] = field(default_factory=list)
    """What the folder lacks, or holds beyond what is known here."""
    measures: dict[str, Any] = field(default_factory=dict)
    """PSNR (dB; infinite for equal frames) and SSIM of frames, seconds, peak memory."""
    started: float = field(default_factory=time.monotonic)

    @property
    def ok(self) -> bool:
        """Whether something was compared and everything is within its tolerance."""
        return bool(self.checks) and all(check.ok for check in self.checks)

    def add(self, name: str, kind: str, difference: float) -> None:
        self.checks.append(Check(name, kind, difference))

    def compare(self, name: str, kind: str, mine: NDArray[Any], expected: NDArray[Any]) -> None:
        """Add the largest absolute difference; infinite where the shapes differ."""
        self.add(name, kind, largest_difference(mine, expected))

    def compare_frames(self, name: str, mine: NDArray[Any], expected: NDArray[Any]) -> None:
        """uint8 frames [n, H, W, 3]: levels off, how many, and how it looks."""
        self.compare(name, "frames_largest", mine, expected)
        share = float((mine != expected).mean()) if mine.shape == expected.shape else math.inf
        self.add(f"{name}.off_share", "frames_off_share", share)
        if mine.shape == expected.shape:
            self.measures[f"{name}.psnr"] = psnr(mine, expected)
            self.measures[f"{name}.ssim"] = ssim(mine, expected)

    def compare_repeat(
        self, first: NDArray[Any], again: NDArray[Any], *, same_latents: bool = True
    ) -> None:
        """Frames of the same session, played twice: every bit must be the same."""
        same = same_latents and np.array_equal(first, again)
        self.add("repeat", "repeat", 0.0 if same else 1.0)
        self.measures["repeat.identical"] = same
        self.measures["repeat.psnr"] = psnr(again, first)
        self.measures["repeat.ssim"] = ssim(again, first)

    def finish(self) -> Report:
        """Note the time taken and the process's peak memory."""
        self.measures["seconds"] = round(time.monotonic() - self.started, 3)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self.measures["peak_memory_bytes"] = peak
        return self

    def to_json(self) -> str:
        """One JSON object; infinite and undefined numbers are the strings "inf" and "nan"."""
        content = {"ok": self.ok} | asdict(self)
        content |= {
            "tolerances": TOLERANCES,
            "failed": [check.name for check in self.checks if not check.ok],
            "checks": [
                {**asdict(check), "tolerance": check.tolerance, "ok": check.ok}
                for check in self.checks
            ],
        }
        del content["started"]
        return json.dumps(_finite(content), indent=2, allow_nan=False)


def merge(reports: list[Report]) -> Report:
    """One report of several, each one's names preceded by what it was played on."""
    first = reports[0]
    if len(reports) == 1:
        return first
    merged = Report(first.checkpoint, first.expected, ", ".join(r.played_on for r in reports))
    for report in reports:
        place = report.played_on.split()[0]
        merged.checks += [replace(check, name=f"{place}: {check.name}") for check in report.checks]
        merged.not_compared += [f"{place}: {name}" for name in report.not_compared]
        merged.measures |= {f"{place}: {name}": value for name, value in report.measures.items()}
    return merged


def largest_difference(mine: NDArray[Any], expected: NDArray[Any]) -> float:
    """Of two arrays; infinite where the shapes differ, 0 for empty ones."""
    if mine.shape != expected.shape:
        return math.inf
    return float(np.abs(mine.astype(np.float64) - expected).max(initial=0))


def psnr(mine: NDArray[Any], expected: NDArray[Any]) -> float:
    """Peak signal-to-noise ratio of uint8 frames in dB, infinite where they are equal."""
    if np.array_equal(mine, expected):
        return math.inf
    return float(peak_signal_noise_ratio(expected, mine, data_range=255))  # type: ignore[no-untyped-call]


def ssim(mine: NDArray[Any], expected: NDArray[Any]) -> float:
    """Mean structural similarity of uint8 frames [n, H, W, 3]; 1 where they are equal."""
    values = [
        structural_similarity(  # type: ignore[no-untyped-call]
            theirs, ours, channel_axis=-1, data_range=255
        )
        for ours, theirs in zip(mine, expected, strict=True)
    ]
    return float(np.mean(values))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
