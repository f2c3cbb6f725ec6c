"""What the transformer's training minimises."""

from __future__ import annotations

import pytest
import torch

from lingbot_tools.tiny_world.dit_training import by_step
from lingbot_tools.tiny_world.forward import Layout


def test_a_dark_films_error_counts_as_much_as_a_bright_ones() -> None:
    layout = Layout((0, 4, 5), (0, 12, 15), (False, True, True))
    errors = torch.tensor([[9.0, 0.4, 0.2], [9.0, 0.004, 0.0125]], requires_grad=True)
    losses = by_step(layout, errors, torch.tensor([[0, 0, 3], [0, 1, 3]]))
    assert losses["total"].item() == pytest.approx((0.4 * 0.2 * 0.004 * 0.0125) ** 0.25)
    assert float(losses["step 0"]) == pytest.approx(0.4)  # what is not learnt is in no mean
    assert float(losses["step 3"]) == pytest.approx((0.2 + 0.0125) / 2)
    losses["total"].backward()
    assert errors.grad is not None
    # What a given part of each error is worth.
    weighed = errors.grad * errors.detach() / losses["total"].detach()
    assert torch.allclose(weighed, torch.tensor([[0, 0.25, 0.25]] * 2))
