from __future__ import annotations

import math
from pathlib import Path

import pytest
from lingbot_client.figures import ChunkSample
from lingbot_client.pace import Played

from lingbot_tools.bench.sessions import COMPUTED, Case, Results, bars
from lingbot_tools.bench.sessions_command import instances
from lingbot_triton.stage import STAGES


def played(ends: list[float]) -> Played:
    samples = [
        ChunkSample(index, 12, end - 0.5, end - 0.2, end, {}) for index, end in enumerate(ends)
    ]
    return Played(samples)


def results(*ends: list[float], instances: int = 1, cost: float = 0.5, silent: int = 0) -> Results:
    case = Case(f"{len(ends)} sessions", len(ends), instances)
    sessions = [played(one) for one in ends]
    return Results(case, sessions, 1, cost, computed=5.0, elapsed=10.0, silent_chunks=silent)


def test_only_the_time_in_which_all_sessions_were_at_work_counts() -> None:
    found = results([1, 2, 3, 4], [1.5, 2.5, 3.5, 4.5])
    assert found.window == (1.5, 4.0)
    assert found.chunks == [3, 2]


def test_utilisation_is_useful_time_over_all_time_of_all_instances() -> None:
    one = results([1, 2, 3, 4], [1.5, 2.5, 3.5, 4.5])
    assert one.utilisation == pytest.approx(5 * 0.5 / 2.5)
    two = results([1, 2, 3, 4], [1.5, 2.5, 3.5, 4.5], instances=2)
    assert two.utilisation == pytest.approx(one.utilisation / 2)


def test_tritons_counter_gives_another_utilisation() -> None:
    assert results([1, 2, 3]).counted_utilisation == pytest.approx(0.5)


def test_the_counter_is_that_of_the_denoise_model_only() -> None:
    text = (
        "# HELP nv_inference_compute_infer_duration_us Cumulative compute\n"
        'nv_inference_compute_infer_duration_us{model="decode",version="1"} 7\n'
        'nv_inference_compute_infer_duration_us{model="denoise",version="1"} 1234.5\n'
    )
    assert COMPUTED.findall(text) == ["1234.5"]


def test_a_failed_chunk_is_none() -> None:
    found = results([1, 2, 3])
    found.played[0].samples[-1] = ChunkSample(2, 0, 2.5, math.inf, 3, error="broken")
    assert found.chunks == [1]


def test_a_session_that_got_nothing_is_infinitely_unfair() -> None:
    found = results([1, 2, 3, 4], [1, 9, 10, 11])
    assert found.chunks == [3, 0]
    assert found.unfairness == math.inf


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
