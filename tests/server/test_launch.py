"""Starting and stopping the real tritonserver with the real models."""

from __future__ import annotations

import http.client
import os
import re
import signal
import time

import pytest
from tritonclient.grpc import InferenceServerClient, InferenceServerException

from lingbot_triton.stage import MODELS
from lingbot_triton.triton.server import ServerConfig, ServerError, ServerProcess
from tests.server.conftest import StartServer
from tests.server.serving import Serve, least_seconds

SIMULATED: dict[str, str | float] = {"simulated": "seed-4xh100", "simulated_scale": 0.01}


def test_every_model_has_a_process_and_a_region(shared_server: StartServer) -> None:
    server = shared_server(**SIMULATED)
    assert set(server.model_processes()) == {model.name for model in MODELS}
    assert len(server.regions()) >= len(MODELS)
    assert server.pid in server.processes()


def test_metrics_are_served(shared_server: StartServer) -> None:
    host, _, port = shared_server(**SIMULATED).metrics.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    connection.request("GET", "/metrics")
    assert b"nv_inference_request_success" in connection.getresponse().read()
    connection.close()


def test_clients_cannot_unload_a_model(shared_server: StartServer) -> None:
    server = shared_server(**SIMULATED)
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


def test_a_worker_that_was_killed_leaves_nothing(own_server: StartServer) -> None:
    server = own_server(**SIMULATED)
    os.kill(server.model_processes()["decode"], signal.SIGKILL)
    server.stop()
    assert server.processes() == []
    assert server.regions() == []


def test_serve_says_in_one_line_where_it_is_ready(serve: Serve) -> None:
    address = r"127\.0\.0\.1:\d+"
    pattern = (
        f"ready: grpc {address} http {address} metrics {address} simulated seed-4xh100 × 0.01\n"
    )
    assert re.fullmatch(pattern, serve.ready)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_everything_within_five_seconds(number: int) -> None:
    def stop() -> float:
        serve = Serve()
        try:
            assert len(serve.regions) == len(MODELS)
            seconds = serve.stop(number)
            assert (serve.program.returncode, serve.rest) == (0, "")
            lines = serve.errors.splitlines()
            assert [line for line in lines if "are still being loaded" not in line] == []
            assert serve.everything_gone()
        finally:
            serve.end()
        return seconds

    assert least_seconds(stop, 5) < 5


def test_a_killed_launcher_takes_its_server_along(serve: Serve) -> None:
    serve.program.kill()
    deadline = time.monotonic() + 60
    while not serve.everything_gone() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert serve.everything_gone()
