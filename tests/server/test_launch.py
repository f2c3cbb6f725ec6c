"""Starting and stopping the real tritonserver with the real models."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
from tritonclient.grpc import InferenceServerClient, InferenceServerException

from lingbot_triton.stage import MODELS
from lingbot_triton.triton.scrape import scrape
from lingbot_triton.triton.server import Leftovers, ServerConfig, ServerError, ServerProcess
from tests.server.conftest import StartServer
from tests.server.serving import Serve

SIMULATED: dict[str, str | float] = {"simulated": "seed-4xh100", "simulated_scale": 0.05}


def test_every_model_has_a_process_and_a_region(shared_server: StartServer) -> None:
    server = shared_server(max_sessions=4, **SIMULATED)
    assert set(server.model_processes()) == {model.name for model in MODELS}
    assert len(server.regions()) >= len(MODELS)
    assert server.pid in server.processes()


def test_metrics_are_served(shared_server: StartServer) -> None:
    assert (
        scrape(shared_server(max_sessions=4, **SIMULATED).metrics, "nv_inference_request_success")
        != {}
    )


def test_clients_cannot_unload_a_model(shared_server: StartServer) -> None:
    server = shared_server(max_sessions=4, **SIMULATED)
    with InferenceServerClient(server.grpc) as client:
        with pytest.raises(InferenceServerException, match="restricted"):
            client.unload_model("decode")
        assert client.is_model_ready("decode")


def test_a_setting_that_a_model_refuses_is_named() -> None:
    config = ServerConfig(environment={"LINGBOT_MAX_SESSIONS": "99"})
    server = ServerProcess(config)
    with pytest.raises(ServerError, match=r"max_sessions is 99; it must be 1 to 64"), server:
        pass
    assert server.processes() == []
    assert server.regions() == []


def test_a_server_that_crashes_while_it_starts_is_started_again() -> None:
    server = ServerProcess(
        ServerConfig(environment={"LINGBOT_SIMULATED": "seed-4xh100"}, exit_timeout_seconds=60)
    )
    server.start()
    try:
        crashed = server.pid
        while not server.model_processes():
            time.sleep(0.01)
        os.kill(crashed, signal.SIGABRT)
        server.wait_ready()
        assert server.pid != crashed
        assert set(server.model_processes()) == {model.name for model in MODELS}
        assert len(server.regions()) == len(MODELS)  # none is left of the other
    finally:
        left = server.stop(65.0)
    assert left == Leftovers()
    assert not Path("/proc", str(crashed)).exists()


def test_a_worker_that_was_killed_leaves_nothing(own_server: StartServer) -> None:
    server = own_server(**SIMULATED)
    os.kill(server.model_processes()["decode"], signal.SIGKILL)
    server.stop()
    assert server.processes() == []
    assert server.regions() == []


def test_serve_says_where_it_is_ready_and_a_signal_ends_it_without_a_word(serve: Serve) -> None:
    """Which signals do, and how long they wait, `tests/unit/triton/test_foreground.py` has."""
    address = r"127\.0\.0\.1:\d+"
    pattern = (
        f"ready: grpc {address} http {address} metrics {address} simulated seed-4xh100 × 0.01\n"
    )
    assert re.fullmatch(pattern, serve.ready)
    assert len(serve.regions) == len(MODELS)
    serve.stop(signal.SIGHUP)
    assert (serve.program.returncode, serve.rest) == (0, "")
    lines = serve.errors.splitlines()
    assert [line for line in lines if "are still being loaded" not in line] == []
    assert serve.everything_gone()


def test_a_killed_launcher_takes_its_server_along(serve: Serve) -> None:
    serve.program.kill()
    deadline = time.monotonic() + 60
    while not serve.everything_gone() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert serve.everything_gone()
