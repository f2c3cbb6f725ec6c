from __future__ import annotations

import pytest
import torch

from lingbot_triton.stages.compute import find_device


@pytest.mark.parametrize(("has_gpu", "found"), [(True, "cuda:0"), (False, "cpu")])
def test_auto_is_the_first_gpu_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, has_gpu: bool, found: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    assert find_device("auto") == torch.device(found)


def test_a_device_that_is_named_is_taken_whether_it_is_there_or_not() -> None:
    assert find_device("cuda:3") == torch.device("cuda:3")
