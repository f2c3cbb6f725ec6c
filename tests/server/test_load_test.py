"""perf_analyzer, the real one, against the orchestrator."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from lingbot_tools.bench.__main__ import main
from tests.server.conftest import StartServer
from tests.server.play import bench


def load_test(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["load-test", *map(str, arguments)])


def test_one_four_and_eight_sequences_meet_no_error(tmp_path: Path) -> None:
    table = tmp_path / "r.csv"
    report, _ = bench(
        *("load-test", "--concurrency", "1,4,8", "--requests", 16, "--scale", 0.02),
        *("--check-answers", "--csv", table),
        folder=tmp_path,
    )
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["Concurrency"] for row in rows] == ["1", "4", "8"]
    assert all(float(row["Inferences/Second"]) > 0 for row in rows)
    levels = report["levels"]
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
    shared_server: StartServer, tmp_path: Path
) -> None:
    server = shared_server(simulated="seed-4xh100", simulated_scale=0.05, max_sessions=4)
    report = tmp_path / "r.json"
    done = load_test(
        *("--url", server.grpc, "--metrics-url", server.metrics, "--concurrency", 8),
        *("--requests", 16, "--size", "96x64", "--json", report),
    )
    assert done.exit_code == 1
    (level,) = json.loads(report.read_text())["levels"]
    rejected: dict[str, Any] = {k: n for k, n in level["counters"].items() if "rejections" in k}
    assert rejected['lingbot_rejections_total{code="SESSION_LIMIT"}'] > 0
    assert 'code="SESSION_LIMIT"' in done.stdout


def test_a_running_server_needs_the_address_of_its_metrics() -> None:
    done = load_test("--url", "127.0.0.1:1")
    assert done.exit_code == 2
    assert "--metrics-url" in done.stderr
