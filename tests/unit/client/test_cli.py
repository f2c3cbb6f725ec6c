from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest
from click.testing import CliRunner, Result
from lingbot_client import WorldClient, cli
from lingbot_client.transport import Model, Request, ServerInfo, Tensor
from PIL import Image

from tests.unit.client.fake_server import READY, FakeServer, FakeStream, hang_up, ignore, refuse


@pytest.fixture(autouse=True)
def _played_on_the_fake_server(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "make_client", lambda *_: WorldClient(transport=server))


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(cli.main, [str(argument) for argument in arguments])


def frame_count(path: Path) -> int:
    with av.open(str(path)) as container:
        return sum(1 for _ in container.decode(video=0))


def test_play_writes_video_sheet_and_report(server: FakeServer, tmp_path: Path) -> None:
    video, sheet, report = (tmp_path / name for name in ("w.mp4", "s.png", "r.json"))
    result = invoke(
        *("play", "--keys", "w wl .", "--chunks", 4),
        *("--out", video, "--sheet", sheet, "--json", report),
    )
    assert result.exit_code == 0, result.output
    assert frame_count(video) == 9 + 3 * 12
    with Image.open(sheet) as picture:
        assert picture.height == 4 + 4 * (48 + 4)
    played = json.loads(report.read_text())
    assert [chunk["keys"] for chunk in played["chunks"]] == ["w", "wl", "", "w"]
    assert [chunk["frames"] for chunk in played["chunks"]] == [9, 12, 12, 12]
    assert played["chunks"][0]["first_frame_ms"] == 100
    assert played["chunks"][0]["last_frame_ms"] == 300
    assert played["chunks"][0]["condition_wait_ms"] == 0.5
    assert played["summary"] == {"reason": "end", "chunks": 4}
    assert played["interrupted"] is False
    assert "100.0" in result.stdout
    assert server.closed


def test_the_hud_is_a_border_of_the_video_alone(tmp_path: Path) -> None:
    heights = []
    for options in ((), ("--hud",)):
        assert invoke("play", "--chunks", 1, "--out", tmp_path / "w.mp4", *options).exit_code == 0
        with av.open(str(tmp_path / "w.mp4")) as container:
            heights.append(container.streams.video[0].height)
    assert heights[1] == heights[0] + 16


def test_play_passes_seed_area_and_options(server: FakeServer) -> None:
    result = invoke(
        "play", "--seed", 7, "--size-area", "96x64", "--option", "shift=8.5", "--keys", "w a"
    )
    assert result.exit_code == 0, result.output
    options = json.loads(server.requests[0].inputs["options"][0])
    assert options == {"seed": 7, "max_area": 6144, "shift": 8.5, "chunk_count": 2}


def test_an_endless_session_gets_no_chunk_count(server: FakeServer) -> None:
    assert invoke("play", "--option", "kv_window_frames=21").exit_code == 0
    options = json.loads(server.requests[0].inputs["options"][0])
    assert options == {"seed": 42, "kv_window_frames": 21}


def test_play_takes_poses_from_a_file(server: FakeServer, tmp_path: Path) -> None:
    path = tmp_path / "poses.npy"
    np.save(path, np.zeros((6, 4, 4)))
    result = invoke("play", "--poses", path)
    assert result.exit_code == 0, result.output
    assert [r.inputs["poses"].shape for r in server.requests[1:3]] == [(3, 4, 4)] * 2
    assert result.stdout.count("poses") == 2


def test_chunks_of_poses_are_as_long_as_the_server_says(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "poses.npy"
    np.save(path, np.zeros((8, 4, 4)))
    result = invoke("play", "--poses", path)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "Error: 8 poses given; a multiple of 3 are needed"
    assert server.requests[-1].end
    monkeypatch.setitem(READY, "chunk_latent_frames", 4)
    assert invoke("play", "--poses", path).exit_code == 0
    assert [r.inputs["poses"].shape for r in server.requests[-3:-1]] == [(4, 4, 4)] * 2


@pytest.mark.parametrize(("ahead", "sent"), [([], [0]), (["--ahead"], [0, 1])])
def test_play_waits_for_each_chunk_or_sends_one_control_ahead(
    server: FakeServer, ahead: list[str], sent: list[int]
) -> None:
    def hang_up_soon(stream: FakeStream, request: Request) -> None:
        asyncio.get_running_loop().call_later(0.01, hang_up, stream, request)

    server.reactions[0] = hang_up_soon
    server.reactions[1] = ignore
    assert invoke("play", "--chunks", 4, *ahead).exit_code == 1
    assert server.chunk_indices == sent


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--image", "/nowhere.png"], "cannot read picture /nowhere.png"),
        (["--poses", "/nowhere.npy"], "No such file"),
        (["--keys", " "], "no keys given"),
        (["--option", "shift"], "'shift' is not name=value"),
        (["--size-area", "big"], "'big' is neither"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_exit_code_1(
    arguments: list[str], sentence: str
) -> None:
    result = invoke("play", *arguments)
    assert result.exit_code == 1
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert sentence in line
    assert "Traceback" not in result.output


@pytest.mark.parametrize("moment", ["start", 2])
def test_a_servers_error_is_one_line_and_leaves_no_half_video(
    server: FakeServer, tmp_path: Path, moment: str | int
) -> None:
    server.reactions[moment] = refuse("STAGE_FAILED", "the decoder broke")
    result = invoke("play", "--chunks", 4, "--out", tmp_path / "w.mp4")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "Error: the decoder broke"
    assert list(tmp_path.iterdir()) == []
    assert server.requests[-1].end


def test_a_lost_connection_is_one_line(server: FakeServer) -> None:
    server.reactions[1] = hang_up
    result = invoke("play")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "Error: the connection was lost"


def test_ctrl_c_closes_the_session_and_keeps_the_video(server: FakeServer, tmp_path: Path) -> None:
    server.reactions[2] = lambda stream, request: signal.raise_signal(signal.SIGINT)
    result = invoke("play", "--chunks", 9, "--out", tmp_path / "w.mp4")
    assert result.exit_code == 130
    assert server.chunk_indices == [0, 1, 2]
    assert server.requests[-1].end
    assert server.streams[0].cancelled
    assert frame_count(tmp_path / "w.mp4") == 9 + 12


def test_info_shows_state_models_and_inputs(server: FakeServer) -> None:
    server.info = ServerInfo(
        live=True,
        ready=False,
        name="triton",
        version="2.51.0",
        models=(Model("decode", "1", ready=False),),
        inputs=(Tensor("poses", "FP32", (-1, 4, 4)),),
    )
    result = invoke("info")
    assert result.exit_code == 0, result.output
    for text in ("2.51.0", "not ready", "decode", "[-1, 4, 4]"):
        assert text in result.stdout


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "lingbot_client", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "play" in shown.stdout
    assert "info" in shown.stdout


def test_the_package_needs_neither_torch_nor_the_server() -> None:
    program = "import sys, lingbot_client.cli; print(list(sys.modules))"
    command = [sys.executable, "-c", program]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "'lingbot_client'" in shown.stdout
    assert "'torch'" not in shown.stdout
    assert "'lingbot_triton'" not in shown.stdout
