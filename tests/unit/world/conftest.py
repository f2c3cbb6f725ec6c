"""The plain helper modules beside the tests are imported by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """The tensors here are far too small to share, and idle threads would spin."""
    torch.set_num_threads(1)


@pytest.fixture
def nothing_compiled() -> None:
    """Forgets what earlier tests had compiled, which counts for a function wherever it is used."""
    torch._dynamo.reset()
