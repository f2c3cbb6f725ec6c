"""The server here is a shell script: what is tested is starting, waiting and stopping."""

from __future__ import annotations

import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lingbot_triton.triton.explain import explain
from lingbot_triton.triton.server import (
    SHARED_MEMORY,
    Leftovers,
    ServerConfig,
    ServerError,
    ServerProcess,
)
from lingbot_triton.triton.system import is_listening
from tests.unit.orchestrator.virtual_time import Clock

MODEL_FAILED = (
    """E1129 16:28:07.9 80 model_lifecycle.cc:642] "failed to load 'denoise' version 1: """
    r"""Internal: SettingsError: max_sessions is 99\n\nAt:\n  /model.py(4): initialize\n" """
)
PORT_TAKEN = (
    'E1129 16:24:19.7 65 main.cc:245] "failed to start GRPC service: '
    "Unavailable - Socket '127.0.0.1:18101' already in use \""
)
NO_GPU = 'E1129 16:28:09.0 81 server.cc:241] "CudaDriverHelper has not been initialized."'


def _server(folder: Path, script: str, **config: object) -> ServerProcess:
    program = folder / "tritonserver"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return ServerProcess(ServerConfig(tritonserver=program, **config))  # type: ignore[arg-type]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """What the waiting for a server goes by."""
    clock = Clock()
    monkeypatch.setattr("lingbot_triton.triton.server.time", clock)
    return clock


def _wait_for(text: str, server: ServerProcess) -> None:
    deadline = time.monotonic() + 60
    while text not in server.output() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert text in server.output()


def test_a_server_gets_three_ports_and_only_local_addresses(tmp_path: Path) -> None:
    server = _server(tmp_path, 'for a in "$@"; do echo "$a"; done', grpc_port=12345)
    server.start()
    _wait_for("--metrics-port", server)
    server.stop()
    addresses = [server.http, server.grpc, server.metrics]
    assert server.grpc == "127.0.0.1:12345"
    assert len(set(addresses)) == 3
    told = server.output().splitlines()
    for name, address in zip(("http", "grpc", "metrics"), addresses, strict=True):
        assert f"--{name}-address=127.0.0.1" in told
        assert f"--{name}-port={address.rpartition(':')[2]}" in told


def test_the_environment_reaches_the_server(tmp_path: Path) -> None:
    server = _server(
        tmp_path, 'echo "got $LINGBOT_DEVICE"', environment={"LINGBOT_DEVICE": "cuda:3"}
    )
    server.start()
    _wait_for("got cuda:3", server)
    server.stop()


def test_output_goes_to_the_log(tmp_path: Path) -> None:
    server = _server(tmp_path, "echo one; echo two >&2", log=tmp_path / "log")
    server.start()
    _wait_for("two", server)
    server.stop()
    assert (tmp_path / "log").read_text() == "one\ntwo\n"


def test_a_server_that_ends_early_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="its last words were:\nno such option"):
        _server(tmp_path, "echo no such option; exit 1").__enter__()


@pytest.mark.parametrize(
    ("end", "starts", "left"), [("kill -ABRT $$", 3, -signal.SIGABRT), ("exit 1", 1, 1)]
)
def test_a_server_that_crashes_while_it_starts_is_started_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, end: str, starts: int, left: int
) -> None:
    """But not one that has a reason to stop."""
    log = tmp_path / "log"
    server = _server(tmp_path, f"echo loading; {end}", log=log)
    server.start()
    with pytest.raises(ServerError, match="loading"):
        server.wait_ready()
    assert server.stop().exit_code == left
    assert log.read_text().split() == ["loading"] * starts
    assert [record.getMessage() for record in caplog.records] == [
        "tritonserver crashed while it started, and is started again"
    ] * (starts - 1)


def test_a_server_that_is_never_ready_is_stopped(tmp_path: Path, clock: Clock) -> None:
    server = _server(tmp_path, "echo loading; exec sleep 600", start_seconds=40)
    server.start()
    _wait_for("loading", server)
    with pytest.raises(ServerError, match="not ready after 40 s; its last words were:\nloading"):
        server.wait_ready()
    assert 40 < clock.now < 41
    assert server.processes() == [server.pid]
    assert server.stop(grace=60) == Leftovers(exit_code=-signal.SIGTERM)
    assert server.processes() == []


def test_a_started_server_has_its_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton opens their port after it calls itself ready."""
    monkeypatch.setattr(ServerProcess, "is_ready", lambda self: True)
    server = _server(tmp_path, "exec sleep 60")
    host, _, port = server.metrics.rpartition(":")
    opened: list[socket.socket] = []

    answers: list[bool] = []

    def listening(address: str) -> bool:
        """It does not when it is first asked, and does from then on."""
        answers.append(is_listening(address))
        if not opened:
            opened.append(socket.create_server((host, int(port))))
        return answers[-1]

    monkeypatch.setattr("lingbot_triton.triton.server.is_listening", listening)
    with server:
        assert answers == [False, True]
        opened.pop().close()


def test_a_server_that_has_no_metrics_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServerProcess, "is_ready", lambda self: True)
    monkeypatch.setattr("lingbot_triton.triton.server.is_listening", lambda address: 1 / 0)
    for arguments in (("--allow-metrics=false",), ("--allow-metrics", "0")):
        with _server(tmp_path, "exec sleep 60", arguments=arguments):
            pass


def test_long_loading_is_told(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    server = _server(tmp_path, "exec sleep 600", start_seconds=40)
    with pytest.raises(ServerError):
        server.__enter__()
    assert [record.getMessage() for record in caplog.records] == [
        "the models are still being loaded, for 15 s now",
        "the models are still being loaded, for 30 s now",
    ]


def test_a_server_that_answers_is_ready(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = _server(tmp_path, "exec sleep 60", http_port=listener.getsockname()[1])
        listener.settimeout(10)
        assert not _answering(listener, server, "400 Bad Request")
        assert _answering(listener, server, "200 OK")


def _answering(listener: socket.socket, server: ServerProcess, status: str) -> bool:
    with ThreadPoolExecutor() as pool:
        ready = pool.submit(server.is_ready)
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())
        return ready.result()


def test_stopping_kills_what_does_not_stop_by_itself(tmp_path: Path) -> None:
    server = _server(tmp_path, "trap '' TERM; sleep 60 & echo up; wait; wait")
    server.start()
    _wait_for("up", server)
    members = server.processes()
    assert len(members) == 2
    started = time.monotonic()
    left = server.stop(grace=0.2)
    assert time.monotonic() - started < 4
    assert set(left.processes) == set(members)
    assert server.processes() == []


def test_a_server_that_gave_up_waiting_did_not_stop_gracefully(tmp_path: Path) -> None:
    words = "failed to stop server: Internal - Exit timeout expired. Exiting immediately."
    server = _server(tmp_path, f"trap 'echo {words}; exit 1' TERM; echo up; while :; do :; done")
    server.start()
    _wait_for("up", server)
    assert server.stop(grace=60) == Leftovers(exit_code=1, timed_out=True)


def test_stopping_kills_the_orphans_of_a_server_that_is_gone(tmp_path: Path) -> None:
    server = _server(tmp_path, "sleep 60 & echo $!")
    server.start()
    server._process.wait(10)  # type: ignore[union-attr]
    orphans = server.processes()
    assert len(orphans) == 1
    assert server.stop().processes == tuple(orphans)
    assert server.processes() == []


def test_stopping_removes_only_the_regions_of_this_server(tmp_path: Path) -> None:
    server = _server(tmp_path, "exec sleep 60")
    mine = SHARED_MEMORY / f"{server.region_prefix}of-a-killed-worker"
    other = SHARED_MEMORY / f"not-{server.region_prefix}{os.getpid()}"
    server.start()
    try:
        mine.touch()
        other.touch()
        assert server.stop().regions == (mine.name,)
        assert not mine.exists()
        assert other.exists()
    finally:
        other.unlink()


def test_stopping_what_was_never_started_is_nothing() -> None:
    assert ServerProcess().stop() == Leftovers()


def test_an_error_in_a_model_is_one_sentence() -> None:
    assert explain([NO_GPU, MODEL_FAILED.strip(), "error: creating server"]) == (
        "tritonserver stopped, since it could not load\n"
        "model denoise: SettingsError: max_sessions is 99"
    )


def test_a_taken_port_is_named() -> None:
    assert explain([NO_GPU, PORT_TAKEN]) == (
        "tritonserver stopped, since 127.0.0.1:18101 (GRPC) is taken by another program"
    )


def test_other_errors_are_quoted_without_the_harmless_ones() -> None:
    poll = "E1129 16:28:09.0 81 repo.cc:1] \"Poll failed for model directory 'x'\""
    assert explain([NO_GPU, poll, "| table |"]) == (
        "tritonserver stopped; its last words were:\nPoll failed for model directory 'x'"
    )
