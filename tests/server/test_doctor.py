"""`lingbot-world doctor` on real servers, well and not."""

from __future__ import annotations

import asyncio
import contextlib
import re

import pytest
from click.testing import CliRunner, Result
from lingbot_client import WorldClient, cli
from tritonclient.grpc import InferenceServerClient

from lingbot_triton.triton.server import ServerProcess
from tests.server.conftest import StartServer
from tests.server.play import picture

SIMULATED: dict[str, str | float] = {"simulated": "seed-4xh100", "simulated_scale": 0.05}


@pytest.fixture(scope="module")
def server(shared_server: StartServer) -> ServerProcess:
    return shared_server(max_sessions=4, **SIMULATED)


def doctor(url: str) -> Result:
    return CliRunner().invoke(cli.main, ["doctor", "--url", url])


def test_a_server_that_is_well(server: ServerProcess) -> None:
    result = doctor(server.grpc)
    assert result.exit_code == 0, result.output
    lines = [line for line in result.output.splitlines() if not line.startswith("! pace")]
    assert lines[0].startswith("✓ server: triton 2.")
    assert "this server is simulated" in lines[3]
    assert re.fullmatch(r"✓ chunk 1: [\d.]+ s from .* [\d.]+ s to the last of 12", lines[5])
    assert lines[6:] == ["✓ session: closed, with 21 frames"]


def test_the_wrong_port_is_named(server: ServerProcess) -> None:
    for url, port in ((server.http, "HTTP"), (server.metrics, "metrics")):
        result = doctor(url)
        assert result.exit_code == 1
        assert f"✗ server: {url} is a Triton server's {port} port" in result.output


def test_a_full_server_is_called_full(server: ServerProcess) -> None:
    async def scenario() -> Result:
        async with WorldClient(server.grpc) as client, contextlib.AsyncExitStack() as sessions:
            for _ in range(4):
                session = client.open_session(picture(), "a hill", max_area=64 * 96)
                await sessions.enter_async_context(session)
            return await asyncio.to_thread(doctor, server.grpc)

    result = asyncio.run(scenario())
    assert result.exit_code == 1
    assert "✗ session: the server is full: 4 sessions are open" in result.output


def test_a_model_that_is_not_loaded_is_named(own_server: StartServer) -> None:
    server = own_server(**SIMULATED)
    headers = {"triton-grpc-protocol-lingbot-admin": server.admin_key}
    with InferenceServerClient(server.grpc) as client:
        client.unload_model("decode", headers=headers)
    result = doctor(server.grpc)
    assert result.exit_code == 1
    assert "✗ models: decode not loaded" in result.output
