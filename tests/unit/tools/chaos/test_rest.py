"""What a run left behind is found: processes, shared memory, and metrics that are not zero."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lingbot_tools.chaos import __main__ as chaos
from lingbot_triton import metrics
from lingbot_triton.triton.server import ServerProcess

BEFORE: dict[str, set[Any]] = {"processes": {7, 8}, "models": {"decode"}, "regions": {"lingbot-a"}}
CASES: list[tuple[list[int], list[str], list[str], bool, list[str]]] = [
    ([7, 8], ["decode"], ["lingbot-a"], False, []),
    ([7, 9], ["decode"], ["lingbot-b"], True, []),
    ([7, 9], ["decode"], ["lingbot-a"], False, ["processes were [7, 8] and are [7, 9]"]),
    ([7, 8, 9], ["decode"], ["lingbot-a"], True, ["processes were [7, 8] and are [7, 8, 9]"]),
    ([7, 8], ["prompt"], ["lingbot-a"], True, ["models were ['decode'] and are ['prompt']"]),
    ([7, 8], ["decode"], [], True, ["regions were ['lingbot-a'] and are []"]),
]


@pytest.mark.parametrize(("processes", "models", "regions", "reloaded", "left"), CASES)
def test_only_reloaded_workers_may_be_others(
    monkeypatch: pytest.MonkeyPatch,
    processes: list[int],
    models: list[str],
    regions: list[str],
    reloaded: bool,
    left: list[str],
) -> None:
    server = SimpleNamespace(
        metrics="",
        processes=lambda: processes,
        model_processes=lambda: dict.fromkeys(models, 8),
        regions=lambda: [Path("/dev/shm") / name for name in regions],
    )
    series: dict[str, float] = {}
    monkeypatch.setattr(chaos, "scrape", lambda address: series)
    assert chaos._left(cast(ServerProcess, server), BEFORE, reloaded) == left
    series[metrics.SESSIONS.name] = 2.0
    busy = f"{metrics.SESSIONS.name} is 2, not 0"
    assert chaos._left(cast(ServerProcess, server), BEFORE, reloaded) == [busy, *left]
