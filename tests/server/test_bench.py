"""The benchmarks against real servers, at a scale where nothing takes long.

What is checked is that they measure and report; how long anything takes depends on the machine.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from lingbot_triton.triton.system import children, command_line
from tests.server.conftest import StartServer

BENCH = (sys.executable, "-m", "lingbot_tools.bench")
PROFILE = "seed-4xh100"
SMALL = ("--size", "96x64")


def bench(*arguments: object, report: Path) -> tuple[dict[str, Any], str]:
    """Run a benchmark; returns its report and what it printed."""
    command = [*BENCH, *map(str, arguments), "--json", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    found: dict[str, Any] = json.loads(report.read_text())
    return found, done.stdout


def first_frames(report: dict[str, Any], scenario: str) -> list[float]:
    """The least time to the first frames of each variant, as a busy machine only adds to it."""
    variants = report["scenarios"][scenario]
    return [
        min(
            sample["server_ms"]["first_frames"]
            for session in variants[name]["chunks"]
            for sample in session[1:]
        )
        for name in ("inline", "prefetch", "all")
    ]


def test_latency_compares_the_variants_in_one_run(tmp_path: Path) -> None:
    picture, trace = tmp_path / "p.png", tmp_path / "t.json"
    report, printed = bench(
        *("latency", "--scale", 0.1, "--chunks", 3, "--warm-up", 1, *SMALL),
        *("--plot", picture, "--trace", trace),
        report=tmp_path / "r.json",
    )
    assert report["errors"] == []
    inline, prefetch, everything = first_frames(report, "thinking")
    assert inline > prefetch > everything  # 1801 : 1447.6 : 1072.2
    for scenario in report["scenarios"].values():
        for variant in scenario.values():
            assert variant["figures"]["chunks"] == 3
            assert variant["figures"]["failures"] == 0
            assert len(variant["chunks"][0]) == 4
    waits = report["scenarios"]["thinking"]["inline"]["figures"]["condition_wait"]
    assert waits["mean"] >= 35  # the condition's cost, in line
    assert {bar["text"] for bar in report["bars"] if bar["met"]} >= {"failed chunks"}
    for text in ("ran on", "simulated", "left out", "thinking", "closed", "ahead"):
        assert text in printed
    with Image.open(picture) as image:
        assert image.width > 1000
    names = {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}
    for stage in ("condition", "denoise", "denoise step", "commit", "decode", "send"):
        assert f"{stage} 1" in names


def test_latency_measures_a_running_server(shared_server: StartServer, tmp_path: Path) -> None:
    server = shared_server(simulated=PROFILE, simulated_scale=0.02)
    report, _ = bench(
        *("latency", "--url", server.grpc, "--scale", 0.02, "--chunks", 2, "--warm-up", 1, *SMALL),
        report=tmp_path / "r.json",
    )
    assert report["errors"] == []
    assert server.grpc in report["about"]["server"]
    command = [sys.executable, "-m", "lingbot_tools.bench", "latency", "--url", server.grpc]
    done = subprocess.run(
        [*command, "--checkpoint", "tiny"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"is simulated {PROFILE}: it has no weights, and no --checkpoint" in done.stderr


def test_latency_computes_with_the_tiny_checkpoint(tmp_path: Path) -> None:
    report, printed = bench(
        *("latency", "--checkpoint", "tiny", "--chunks", 1, "--warm-up", 1),
        *("--rounds", 1, "--think", 0.1, "--size", "32x16"),
        report=tmp_path / "r.json",
    )
    assert report["errors"] == []
    assert report["profile"]["name"] == "measured"
    assert report["profile"]["condition"] > 0
    assert "nothing; the stages compute" in printed


def test_overhead_stands_beside_a_bare_echo(tmp_path: Path) -> None:
    report, printed = bench(
        *("overhead", "--chunks", 3, "--warm-up", 1, "--rounds", 1, *SMALL),
        report=tmp_path / "r.json",
    )
    assert report["errors"] == []
    assert list(report["cases"]) == ["echo", "whole chunks", "parts", "tiny parts"]
    echo = report["cases"]["echo"]["figures"]
    assert echo["whole_chunk_client"]["count"] == 3
    assert echo["whole_chunk_client"]["mean"] > 0
    assert echo["whole_chunk_server"]["count"] == 0
    assert report["cases"]["parts"]["figures"]["whole_chunk_server"]["count"] == 3
    assert "time beyond the echo" in printed


def test_sessions_share_the_instances_and_silent_ones_get_nothing(tmp_path: Path) -> None:
    report, _ = bench(
        *("sessions", "--scale", 0.15, "--chunks", 4, "--warm-up", 1, *SMALL),
        report=tmp_path / "r.json",
    )
    assert report["errors"] == []
    one, silent, several = report["cases"]
    assert [len(case["chunks"]) for case in report["cases"]] == [4, 4, 8]
    assert all(min(case["chunks"]) > 0 for case in report["cases"])
    assert silent["silent_chunks"] == 0
    assert one["utilisation"] > 0.2
    for case in report["cases"]:
        # Each session may bring a chunk into the window that was made before it.
        made = sum(case["chunks"]) - len(case["chunks"])
        instances = case["case"]["instances"]
        cost = case["utilisation"] * instances / case["chunks_per_second"]
        assert cost == pytest.approx(0.15 * (4 * 0.252 + 0.247))
        assert made * cost <= instances * case["window_seconds"]
    assert several["chunks_per_second"] > one["chunks_per_second"]
    assert 0 < one["utilisation_by_tritons_counter"] <= 1.0


def test_the_client_measures_a_persons_pace(shared_server: StartServer, tmp_path: Path) -> None:
    server = shared_server(simulated=PROFILE, simulated_scale=0.02)
    command = [
        *(sys.executable, "-m", "lingbot_client", "bench", "--url", server.grpc),
        *("--sessions", "2", "--chunks", "3", "--warm-up", "1", "--think", "0.1"),
        *("--size-area", "96x64", "--json", str(tmp_path / "r.json")),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["figures"]["chunks"] == 6
    assert report["figures"]["failures"] == 0
    assert report["figures"]["period"]["mean"] > 100
    assert "2 sessions, 0.1 s to think: 6 chunks, 0 failed" in done.stdout


def test_the_client_draws_a_session_and_writes_its_trace(
    shared_server: StartServer, tmp_path: Path
) -> None:
    server = shared_server(simulated=PROFILE, simulated_scale=0.02)
    picture, trace = tmp_path / "t.png", tmp_path / "t.json"
    command = [
        *(sys.executable, "-m", "lingbot_client", "play", "--url", server.grpc, "--keys", "w a"),
        *("--size-area", "96x64", "--timeline", str(picture), "--trace", str(trace)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    with Image.open(picture) as image:
        assert image.height > 200
    events = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    assert {event["name"] for event in events} >= {"decode 0", "decode 1", "commit 1", "send 1"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_benchmark_and_its_server(number: signal.Signals, tmp_path: Path) -> None:
    with (tmp_path / "stderr").open("w") as stderr:
        process = subprocess.Popen(
            [*BENCH, "latency", "--scale", "1", *SMALL],
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    server = _server_of(process)
    time.sleep(2)  # into the first session
    process.send_signal(number)
    assert process.wait(120) == 130
    assert "interrupted" in (tmp_path / "stderr").read_text()
    assert not Path("/proc", str(server)).exists()


def _server_of(process: subprocess.Popen[bytes]) -> int:
    """Process id of the tritonserver that a benchmark has started."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for pid in children(process.pid):
            if any("tritonserver" in argument for argument in command_line(pid)):
                return pid
        time.sleep(0.1)
    raise AssertionError("the benchmark has started no server")
