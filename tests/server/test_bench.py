"""The benchmarks against real servers, at a scale where nothing takes long.

What is checked is that they measure and report; how long anything takes depends on the machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from lingbot_client import cli
from PIL import Image

from lingbot_tools.bench.__main__ import main
from lingbot_triton.triton.scrape import scrape
from lingbot_triton.triton.system import children, command_line
from tests.server.conftest import StartServer
from tests.server.play import bench, eventually

PROFILE = "seed-4xh100"
SCALE = 0.05
SMALL = ("--size", "96x64")


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
        folder=tmp_path,
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
    server = shared_server(simulated=PROFILE, simulated_scale=SCALE, max_sessions=4)
    report, _ = bench(
        *("latency", "--url", server.grpc, "--scale", SCALE, "--chunks", 2, "--warm-up", 1, *SMALL),
        folder=tmp_path,
    )
    assert report["errors"] == []
    assert server.grpc in report["about"]["server"]
    refused = CliRunner().invoke(main, ["latency", "--url", server.grpc, "--checkpoint", "tiny"])
    assert refused.exit_code == 1
    assert f"is simulated {PROFILE}: it has no weights, and no --checkpoint" in refused.stderr


def test_overhead_stands_beside_a_bare_echo(tmp_path: Path) -> None:
    report, printed = bench(
        *("overhead", "--chunks", 3, "--warm-up", 1, "--rounds", 1, *SMALL),
        folder=tmp_path,
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
        folder=tmp_path,
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


def test_the_client_measures_a_persons_pace(shared_server: StartServer, tmp_path: Path) -> None:
    server = shared_server(simulated=PROFILE, simulated_scale=SCALE, max_sessions=4)
    done = CliRunner().invoke(
        cli.main,
        [
            *("bench", "--url", server.grpc, "--sessions", "2", "--chunks", "3", "--warm-up", "1"),
            *("--think", "0.1", "--size-area", "96x64", "--json", str(tmp_path / "r.json")),
        ],
    )
    assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["figures"]["chunks"] == 6
    assert report["figures"]["failures"] == 0
    assert report["figures"]["period"]["mean"] > 100
    assert "2 sessions, 0.1 s to think: 6 chunks, 0 failed" in done.stdout


def test_the_client_draws_a_session_and_writes_its_trace(
    shared_server: StartServer, tmp_path: Path
) -> None:
    server = shared_server(simulated=PROFILE, simulated_scale=SCALE, max_sessions=4)
    picture, trace = tmp_path / "t.png", tmp_path / "t.json"
    done = CliRunner().invoke(
        cli.main,
        [
            *("play", "--url", server.grpc, "--keys", "w a", "--size-area", "96x64"),
            *("--timeline", str(picture), "--trace", str(trace)),
        ],
    )
    assert done.exit_code == 0, done.output
    with Image.open(picture) as image:
        assert image.height > 200
    events = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    assert {event["name"] for event in events} >= {"decode 0", "decode 1", "commit 1", "send 1"}


def test_a_signal_ends_a_benchmark_and_its_server(tmp_path: Path) -> None:
    """Which signals do, `tests/unit/triton/test_foreground.py` has."""
    with (tmp_path / "stderr").open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "lingbot_tools.bench", "latency", "--scale", "1", *SMALL],
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    server, metrics = asyncio.run(_server_of(process))
    asyncio.run(eventually(lambda: _plays(metrics)))
    process.send_signal(signal.SIGTERM)
    assert process.wait(100) == 130
    assert "interrupted" in (tmp_path / "stderr").read_text()
    assert not Path("/proc", str(server)).exists()


async def _server_of(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """The tritonserver that a benchmark has started: its process id, and its metrics' address."""
    found: dict[int, str] = {}

    def started() -> bool:
        for pid in children(process.pid):
            for argument in command_line(pid):
                if argument.startswith("--metrics-port="):
                    found[pid] = f"127.0.0.1:{argument.partition('=')[2]}"
        return bool(found)

    await eventually(started, 100)
    return found.popitem()


def _plays(metrics: str) -> bool:
    try:
        return scrape(metrics)['lingbot_sessions{state="open"}'] > 0
    except (OSError, HTTPException, KeyError):  # it is still being started
        return False
