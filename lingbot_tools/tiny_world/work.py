"""The work folder of a training: what each stage has reached, so that it can go on from there."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch


@dataclass
class Reached:
    """How far a stage has come."""

    step: int = 0
    seconds: float = 0.0
    losses: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """Per name (step, mean since the one before)."""


@dataclass(frozen=True)
class Work:
    """Paths below one folder; every file is replaced whole, so an interruption leaves the old."""

    root: Path

    def path(self, name: str) -> Path:
        self.root.mkdir(parents=True, exist_ok=True)
        return self.root / name

    def save(self, stage: str, reached: Reached, state: dict[str, Any]) -> None:
        """Keep a stage's progress and `state`, tensors in plain containers."""
        content = {"reached": vars(reached), "state": state}
        path = self.path(f"{stage}.pt")
        partial = path.with_suffix(".partial")
        torch.save(content, partial)
        os.replace(partial, path)

    def load(self, stage: str) -> tuple[Reached, dict[str, Any]] | None:
        """What `save` kept, None where there is nothing yet."""
        path = self.path(f"{stage}.pt")
        if not path.exists():
            return None
        content = torch.load(path, map_location="cpu", weights_only=True)
        return Reached(**content["reached"]), content["state"]

    def write_json(self, name: str, content: Any) -> None:
        path = self.path(name)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(content, indent=2) + "\n")
        os.replace(partial, path)

    def read_json(self, name: str) -> Any:
        """The content of a JSON file, None where there is none."""
        path = self.path(name)
        return json.loads(path.read_text()) if path.exists() else None
