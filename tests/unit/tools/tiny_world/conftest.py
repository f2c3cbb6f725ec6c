from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """The tensors here are far too small to share, and idle threads would spin."""
    torch.set_num_threads(1)
