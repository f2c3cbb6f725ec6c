"""A tritonserver that was started by hand: its models share a secret all the same."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lingbot_client import WorldClient, errors
from tritonclient.grpc import InferenceServerClient

from lingbot_triton.triton.installation import find_installation
from lingbot_triton.triton.render import REPOSITORY
from lingbot_triton.triton.system import free_ports, session_members, wait_until_gone
from tests.server.play import play
from tests.server.workers import SMALL, call_worker

SIMULATED = {"LINGBOT_SIMULATED": "seed-4xh100", "LINGBOT_SIMULATED_SCALE": "0.05"}


@pytest.fixture
def plain(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, int]]:
    """`tritonserver --model-repository` and, of itself, nothing else: gRPC address, process id."""
    installation = find_installation()
    ports = free_ports("127.0.0.1")
    addresses = {name: next(ports) for name in ("grpc", "http", "metrics")}
    command = [str(installation.binary), *installation.arguments]
    command += [f"--model-repository={REPOSITORY}", "--exit-timeout-secs=10"]
    command += getattr(request, "param", ())
    for name, port in addresses.items():
        command += [f"--{name}-address=127.0.0.1", f"--{name}-port={port}"]
    environment = {**os.environ, **installation.environment, **SIMULATED}
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield f"127.0.0.1:{addresses['grpc']}", process.pid
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
        wait_until_gone(process.pid, 5)
        for pid in session_members(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


async def _serves(grpc: str) -> None:
    """Return once the server plays a chunk; nobody tells when a plain one is ready."""
    async with WorldClient(grpc) as client:
        deadline = time.monotonic() + 120
        while True:
            try:
                assert len(await play(client, ["w"], **SMALL)) == 1
                return
            except (errors.TritonError, errors.ConnectionFailed):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.5)


def test_a_plain_tritonserver_makes_its_own_secret(plain: tuple[str, int]) -> None:
    grpc, pid = plain
    asyncio.run(_serves(grpc))
    with InferenceServerClient(grpc) as client:
        assert "prompt is internal" in call_worker(client, "prompt")
    folder = Path(tempfile.gettempdir()) / f"lingbot-triton-{os.getuid()}"
    (secret,) = folder.glob(f"{pid}-*")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert secret.stat().st_mode & 0o777 == 0o600
    assert len(secret.read_text()) == 64


@pytest.mark.parametrize(
    "plain", [("--model-control-mode=explicit", "--load-model=*")], indirect=True
)
def test_the_workers_obey_an_orchestrator_that_was_loaded_anew(plain: tuple[str, int]) -> None:
    grpc, _ = plain
    asyncio.run(_serves(grpc))
    with InferenceServerClient(grpc) as client:
        client.unload_model("orchestrator")
        client.load_model("orchestrator")
        asyncio.run(_serves(grpc))
        assert "prompt is internal" in call_worker(client, "prompt")
