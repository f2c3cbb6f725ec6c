"""The client's command line against a real server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import av
from PIL import Image

from lingbot_triton.triton.system import port_is_free
from tests.server.conftest import StartServer
from tests.server.workers import orphaned_regions


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lingbot_client", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def test_play_writes_what_the_server_sends(shared_server: StartServer, tmp_path: Path) -> None:
    url = shared_server(condition_cache_bytes=0).grpc
    out, sheet, report = (tmp_path / name for name in ("w.mp4", "sheet.png", "report.json"))
    done = run(
        "play", "--url", url, "--keys", "w wl . sa", "--chunks", "3",
        "--out", out, "--sheet", sheet, "--json", report,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [chunk["keys"] for chunk in json.loads(report.read_text())["chunks"]] == ["w", "wl", ""]
    with av.open(str(out)) as video:
        stream = video.streams.video[0]
        assert (stream.width, stream.height, stream.average_rate) == (96, 64, 16)
        assert sum(1 for _ in video.decode(stream)) == 9 + 12 + 12
    assert sheet.stat().st_size > 1000


def test_the_demo_plays_on_a_server_of_its_own_and_leaves_nothing(tmp_path: Path) -> None:
    before = orphaned_regions()
    command = [sys.executable, "-m", "lingbot_tools.demo", "--chunks=2", f"--out={tmp_path}"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as program:
        shown, errors = program.communicate(timeout=600)
    assert program.returncode == 0, errors
    for word in ("keys", "frames", "condition", "demo.mp4"):
        assert word in shown + errors
    with av.open(str(tmp_path / "demo.mp4")) as video:
        stream = video.streams.video[0]
        assert stream.average_rate == 16
        assert sum(1 for _ in video.decode(stream)) == 9 + 12
    with Image.open(tmp_path / "demo.png") as sheet:
        assert sheet.width > 96
    grpc = re.search(r"grpc (\S+)", errors)
    assert grpc is not None
    host, _, port = grpc[1].rpartition(":")
    assert port_is_free(host, int(port))
    assert orphaned_regions() <= before


def test_info_names_the_models(shared_server: StartServer) -> None:
    done = run("info", "--url", shared_server(condition_cache_bytes=0).grpc)
    assert done.returncode == 0, done.stderr
    for model in ("orchestrator", "prompt", "condition", "denoise", "decode"):
        assert model in done.stdout
    assert "not ready" not in done.stdout


def test_what_the_server_refuses_is_one_line(shared_server: StartServer, tmp_path: Path) -> None:
    url = shared_server(condition_cache_bytes=0).grpc
    done = run("play", "--url", url, "--option", "sed=1", "--out", tmp_path / "w.mp4")
    assert done.returncode == 1
    assert "unknown option 'sed'" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
