"""Comparisons, their tolerances, and the JSON report of them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

TOLERANCES = {
    **dict.fromkeys(("ids", "schedule", "noise", "steady_chunk", "repeat"), 0.0),
    "poses": 1e-6,
    **dict.fromkeys(("context", "condition", "control"), 1e-5),
    **dict.fromkeys(("flow", "latents", "kv"), 2e-4),
    "frames_largest": 1.0,
    "frames_off_share": 1e-3,
    "frames_float": 0.05,
}
"""Largest absolute differences allowed, by kind.

`frames_*`: uint8 levels off; the share of values that are off at all; levels that uint8 frames are
from the ones the float frames are cut to. `steady_chunk` is in chunks.
"""


@dataclass(frozen=True)
class Check:
    """One comparison; right where the difference is at most the tolerance: never NaN."""

    name: str
    kind: str
    difference: float
    tolerance: float
    ok: bool


@dataclass
class Report:
    """All comparisons with one folder of expectations.

    `not_compared` is what the folder lacks, or holds beyond what is known here; `measures` are PSNR
    (dB; infinite for equal frames) and SSIM of frames.
    """

    played_on: str
    checks: list[Check] = field(default_factory=list)
    not_compared: list[str] = field(default_factory=list)
    measures: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether something was compared and everything is within its tolerance."""
        return bool(self.checks) and all(check.ok for check in self.checks)

    def add(self, name: str, kind: str, difference: float) -> None:
        tolerance = TOLERANCES[kind]
        self.checks.append(Check(name, kind, difference, tolerance, difference <= tolerance))

    def compare(self, name: str, kind: str, mine: NDArray[Any], expected: NDArray[Any]) -> None:
        """Add the largest absolute difference; infinite where the shapes differ.

        `frames` are uint8 [n, H, W, 3]: levels off, how many, and how it looks. `frames_float` are
        compared with such frames.
        """
        if kind == "frames_float":
            expected = np.clip((expected.transpose(1, 2, 3, 0) + 1) * 127.5, 0, 255)
            mine = np.clip(expected, mine, mine + 1.0)
        same_shape = mine.shape == expected.shape
        differences = np.abs(mine.astype(np.float64) - expected) if same_shape else np.array(np.inf)
        checked = "frames_largest" if kind == "frames" else kind
        self.add(name, checked, float(differences.max(initial=0)))
        if kind == "frames":
            self.add(f"{name}.off_share", "frames_off_share", float((differences > 0).mean()))
        if kind == "frames" and same_shape:
            with np.errstate(divide="ignore"):  # equal frames have no noise
                psnr = peak_signal_noise_ratio(expected, mine, data_range=255)  # type: ignore[no-untyped-call]
            ssim = [
                structural_similarity(theirs, ours, channel_axis=-1, data_range=255)  # type: ignore[no-untyped-call]
                for ours, theirs in zip(mine, expected, strict=True)
            ]
            self.measures |= {f"{name}.psnr": float(psnr), f"{name}.ssim": float(np.mean(ssim))}

    def to_json(self) -> str:
        """One JSON object; infinite and undefined numbers are the strings "inf" and "nan"."""
        failed = [check.name for check in self.checks if not check.ok]
        content = {"ok": self.ok, **asdict(self), "tolerances": TOLERANCES, "failed": failed}
        strict = json.loads(json.dumps(content), parse_constant=lambda name: str(float(name)))
        return json.dumps(strict, indent=2)
