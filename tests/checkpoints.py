"""The checkpoints that tests load, apart from the embedded one."""

from __future__ import annotations

from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"
GOLDEN_CHECKPOINT = GOLDEN / "cam" / "checkpoint"
"""Tiny, with random weights; the official code's results for it are beside it."""
