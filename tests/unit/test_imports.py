"""The rule of arrows: which part of the project may import which, as pyproject.toml has it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINT = "from importlinter.cli import lint_imports_command as lint; lint(['--no-cache'])"


def test_imports_go_down_only() -> None:
    # In a process of its own: it replaces the configuration of logging.
    lint = [sys.executable, "-c", LINT]
    linted = subprocess.run(lint, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert linted.returncode == 0, linted.stdout
    assert "Contracts: " in linted.stdout
