"""The benchmarks on stages that compute."""

from __future__ import annotations

from pathlib import Path

import pytest

from lingbot_triton.triton.server import ServerProcess
from tests.server.conftest import StartServer
from tests.server.play import bench


@pytest.fixture(scope="module")
def server(shared_server: StartServer) -> ServerProcess:
    return shared_server(condition_cache_bytes=0)


def test_latency_takes_what_stages_cost_from_what_they_took(
    server: ServerProcess, tmp_path: Path
) -> None:
    report, printed = bench(
        *("latency", "--url", server.grpc, "--checkpoint", "tiny", "--chunks", 1, "--warm-up", 1),
        *("--rounds", 1, "--think", 0.1, "--size", "32x16"),
        folder=tmp_path,
    )
    assert report["errors"] == []
    assert report["profile"]["name"] == "measured"
    assert report["profile"]["condition"] > 0
    assert "nothing; the stages compute" in printed


def test_several_sequences_meet_no_error(server: ServerProcess, tmp_path: Path) -> None:
    report, printed = bench(
        *("load-test", "--url", server.grpc, "--metrics-url", server.metrics),
        *("--checkpoint", "tiny", "--concurrency", 4, "--requests", 8, "--check-answers"),
        folder=tmp_path,
    )
    (level,) = report["levels"]
    assert level["faults"] == []
    assert level["answers"]["FRAMES"] > 0
    assert "nothing; the stages compute" in printed
