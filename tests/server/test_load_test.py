"""perf_analyzer, the real one, against the orchestrator."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lingbot_triton.triton.scrape import scrape
from tests.server.conftest import StartServer

LOAD_TEST = (sys.executable, "-m", "lingbot_tools.bench", "load-test")


def load_test(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [*LOAD_TEST, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)


@pytest.mark.parametrize("stages", [("--scale", 0.02), ("--checkpoint", "tiny")])
def test_one_four_and_eight_sequences_meet_no_error(
    stages: tuple[object, ...], tmp_path: Path
) -> None:
    table, report = tmp_path / "r.csv", tmp_path / "r.json"
    done = load_test(
        *("--concurrency", "1,4,8", "--requests", 16, *stages, "--check-answers"),
        *("--csv", table, "--json", report),
    )
    assert done.returncode == 0, done.stderr + done.stdout
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["Concurrency"] for row in rows] == ["1", "4", "8"]
    assert all(float(row["Inferences/Second"]) > 0 for row in rows)
    levels = json.loads(report.read_text())["levels"]
    for level in levels:
        assert level["faults"] == []
        answers, counters = level["answers"], level["counters"]
        assert set(answers) <= {"READY", "FRAMES", "CLOSED"}
        opened = counters["lingbot_sessions_opened_total"]
        assert counters['lingbot_sessions_closed_total{reason="end"}'] == opened
        # The last ENDs may come after what perf_analyzer writes down; the server counts them all.
        assert answers.get("CLOSED", 0) <= answers["READY"] <= opened
        assert answers["FRAMES"] > 0
    # One live sequence ends at least once within so many requests.
    assert levels[0]["answers"]["CLOSED"] > 0


def test_rejections_fail_the_test_although_perf_analyzer_counts_them_as_successes(
    own_server: StartServer, tmp_path: Path
) -> None:
    server = own_server(simulated="seed-4xh100", simulated_scale=0.02, max_sessions=2)
    report = tmp_path / "r.json"
    done = load_test(
        *("--url", server.grpc, "--metrics-url", server.metrics, "--concurrency", 4),
        *("--requests", 16, "--size", "96x64", "--json", report),
    )
    assert done.returncode == 1
    (level,) = json.loads(report.read_text())["levels"]
    rejected: dict[str, Any] = {k: n for k, n in level["counters"].items() if "rejections" in k}
    assert rejected['lingbot_rejections_total{code="SESSION_LIMIT"}'] > 0
    assert 'code="SESSION_LIMIT"' in done.stdout
    assert scrape(server.metrics)['lingbot_rejections_total{code="SESSION_LIMIT"}'] > 0


def test_a_running_server_needs_the_address_of_its_metrics() -> None:
    done = load_test("--url", "127.0.0.1:1")
    assert done.returncode == 2
    assert "--metrics-url" in done.stderr
