from __future__ import annotations

import math
from pathlib import Path

import pytest
from lingbot_client.figures import ChunkSample
from lingbot_client.pace import Played

from lingbot_tools.bench.sessions import Case, Results, bars, instances, summarise
from lingbot_triton.stage import STAGES


def played(ends: list[float]) -> Played:
    samples = [
        ChunkSample(index, 12, end - 0.5, end - 0.2, end, {}) for index, end in enumerate(ends)
    ]
    return Played(samples)


def results(*ends: list[float], instances: int = 1, cost: float = 0.5) -> Results:
    case = Case(f"{len(ends)} sessions", len(ends), instances)
    return summarise(case, [played(times) for times in ends], warm_up=1, cost=cost)


def test_only_the_time_in_which_all_sessions_were_at_work_counts() -> None:
    both = results([1, 2, 3, 4], [1.5, 2.5, 3.5, 4.5])
    assert both.window_seconds == 4.0 - 1.5
    assert both.chunks == [3, 2]


def test_utilisation_is_useful_time_over_all_time_of_all_instances() -> None:
    one = results([1, 2, 3, 4], [1.5, 2.5, 3.5, 4.5])
    assert one.utilisation == pytest.approx(5 * 0.5 / 2.5)
    two = results([1, 2, 3, 4], [1.5, 2.5, 3.5, 4.5], instances=2)
    assert two.utilisation == pytest.approx(one.utilisation / 2)


def test_a_failed_chunk_is_none() -> None:
    session = played([1, 2, 3])
    session.samples[-1] = ChunkSample(2, 0, 2.5, math.inf, 3, error="broken")
    assert summarise(Case("one session", 1, 1), [session], 1, cost=0.5).chunks == [1]


def test_a_session_that_got_nothing_is_infinitely_unfair() -> None:
    starved = results([1, 2, 3, 4], [1, 9, 10, 11])
    assert starved.chunks == [3, 0]
    assert starved.unfairness == math.inf


def test_bars_compare_with_the_ideal_and_with_each_other() -> None:
    one, several = results([1, 2, 3], cost=0.97), results([1, 1.5, 2.0], cost=0.6)
    slower = results([1, 2.1, 3.2], cost=0.97)
    rows = {row.text: row for row in bars([one, slower, several])}
    assert rows["denoise utilisation, 1 sessions"].value == pytest.approx(0.97)
    assert rows["of the ideal throughput, 1 sessions"].value == pytest.approx(1.2)
    assert rows["throughput beside silent sessions"].value == pytest.approx(1 / 1.1)
    assert not rows["throughput beside silent sessions"].met


def test_every_worker_gets_its_instances_and_the_orchestrator_stays_one(tmp_path: Path) -> None:
    folder = instances(tmp_path, 4)
    for spec in STAGES:
        assert "count: 4 " in (folder / spec.name / "config.pbtxt").read_text()
    assert "count: 1 " in (folder / "orchestrator" / "config.pbtxt").read_text()
    assert (folder / "denoise" / "1" / "model.py").is_file()
