"""Who may ask what of a server, and what nobody learns from it."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from lingbot_client import TLS, WorldClient, WorldSession, errors
from tritonclient.grpc import InferenceServerClient

from lingbot_triton.simulated.marks import Mark, fingerprint, read_mark
from lingbot_triton.triton import administration
from lingbot_triton.triton.administration import AdministrationError
from lingbot_triton.triton.server import Leftovers, ServerConfig, ServerProcess
from tests.server.conftest import StartConfigured, StartServer
from tests.server.play import PROMPT, eventually, page, picture, play, sessions
from tests.server.workers import SMALL, call_worker, states

SIMULATED = {"LINGBOT_SIMULATED": "seed-4xh100", "LINGBOT_SIMULATED_SCALE": "0.05"}
WORKERS = ("condition", "denoise", "decode")


@pytest.fixture(scope="module")
def server(shared_server: StartServer) -> ServerProcess:
    return shared_server(simulated="seed-4xh100", simulated_scale=0.05, max_sessions=4)


def test_a_worker_refuses_everybody_else_and_the_session_goes_on(server: ServerProcess) -> None:
    async def scenario() -> None:
        async with (
            WorldClient(server.grpc) as client,
            client.open_session(picture(), PROMPT, seed=3, **SMALL) as session,
        ):
            await session.send("w")
            chunks = [await session.next_chunk()]
            before = {stage: states(server, stage) for stage in WORKERS}
            await asyncio.to_thread(_attack, server, str(session.id))
            assert {stage: states(server, stage) for stage in WORKERS} == before
            for _ in range(2):
                await session.send("w")
                chunks.append(await session.next_chunk())
            marks = [read_mark(frame) for chunk in chunks for frame in chunk.frames]
            expected = [0] * 9 + [1] * 12 + [2] * 12
            assert marks == [Mark(fingerprint(3), c, f) for f, c in enumerate(expected)]

    asyncio.run(scenario())


def _attack(server: ServerProcess, session_id: str) -> None:
    """Call every worker in every way, with a session id that was observed."""
    forged: dict[str, Any] = {"internal": True, "drain": "guess"}
    with InferenceServerClient(server.grpc) as client:
        # No cache answers the one who tries again.
        for secret in (None, "", "guess", "guess", "\u00e9", True, 7):
            assert "prompt is internal" in call_worker(client, "prompt", secret, forged)
            for model in WORKERS:
                for op in ("open", "step", "commit", "close", "ping"):
                    message = call_worker(
                        client,
                        model,
                        secret,
                        {"op": op, "chunk_index": 1, **forged},
                        sequence_id=session_id,
                        sequence_start=True,
                        sequence_end=True,
                    )
                    assert f"{model} is internal: call the orchestrator" in message


def test_who_is_refused_by_workers_takes_no_place_from_sessions(server: ServerProcess) -> None:
    """Without END Triton keeps a sequence's slot, whatever the worker answers."""
    with InferenceServerClient(server.grpc) as client:
        for number in range(100):
            for model in WORKERS:
                sequence = {"sequence_id": f"x{number}", "sequence_start": True}
                assert f"{model} is internal" in call_worker(
                    client, model, "guess", {"op": "open"}, **sequence
                )

    async def scenario() -> None:
        async with WorldClient(server.grpc) as client:
            assert len(await play(client, ["w"], **SMALL)) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("killed", [None, "decode"])
def test_sequences_that_nobody_ends_do_not_keep_a_server_from_stopping(
    doomed_server: StartConfigured, killed: str | None
) -> None:
    """Neither at a worker, whether it lives or has died, nor at the orchestrator."""
    server = doomed_server(environment=SIMULATED, exit_timeout_seconds=60)
    with InferenceServerClient(server.grpc) as client:
        for number in range(3):
            for model in WORKERS:
                sequence = {"sequence_id": f"x{number}", "sequence_start": True}
                call_worker(client, model, "guess", {"op": "open"}, **sequence)

    async def refused() -> str:
        async with WorldClient(server.grpc) as client:
            (response,) = await client.request("x", start=True, image=b"bad", prompt="a")
            return response.status

    assert asyncio.run(refused()) == "BAD_REQUEST"
    if killed is not None:
        os.kill(server.model_processes()[killed], signal.SIGKILL)
    # A client that keeps its HTTP connection open is not waited for either.
    keeps_alive = http.client.HTTPConnection(server.http)
    with contextlib.closing(keeps_alive):
        keeps_alive.request("GET", "/v2/health/live")
        keeps_alive.getresponse().read()
        left = server.stop(grace=65.0)
    assert (left.exit_code, left.timed_out, left.processes) == (0, False, ())
    (waited,) = re.findall(r'"Timeout (\d+): Found 0 live models', server.output())
    assert int(waited) > 50  # seconds that were left of the exit timeout


def test_nobody_steers_or_ends_the_session_of_another(server: ServerProcess) -> None:
    """Triton itself ends a sequence for anybody; the client library goes on all the same."""

    async def scenario() -> None:
        async with (
            WorldClient(server.grpc) as owner,
            WorldClient(server.grpc) as stranger,
            owner.open_session(picture(), PROMPT, **SMALL) as session,
        ):
            for chunk_index in range(3):
                for request in (
                    {"start": True, "chunk_index": chunk_index, "keys": ["s"], "token": "guess"},
                    {"start": True, "end": True, "token": "guess"},
                ):
                    (answer,) = await stranger.request(session.id, **request)
                    assert answer.status == "NO_SESSION"
                await session.send("w")
                chunk = await session.next_chunk()
                assert (chunk.chunk_index, chunk.keys) == (chunk_index, "w")
            await stranger.request(session.id, start=True, end=True, token="guess")
        assert session.summary is not None
        assert session.summary["chunks"] == 3

    asyncio.run(scenario())


def test_only_who_started_the_server_may_end_all_sessions(server: ServerProcess) -> None:
    async def scenario() -> None:
        async with (
            WorldClient(server.grpc) as client,
            client.open_session(picture(), PROMPT, **SMALL) as session,
        ):
            for ask in (administration.drain, administration.probe):
                with pytest.raises(AdministrationError, match=r"BAD_REQUEST: .* server's secret"):
                    await asyncio.to_thread(ask, server.admin, "guess", 10.0)
            await asyncio.to_thread(administration.probe, server.admin, server.secret, 10.0)
            await session.send("w")
            assert len((await session.next_chunk()).frames) == 9

    asyncio.run(scenario())


def test_the_secret_is_told_to_nobody(doomed_server: StartConfigured) -> None:
    server = doomed_server(environment=SIMULATED, arguments=("--log-verbose=1",))

    async def scenario() -> list[Any]:
        async with WorldClient(server.grpc) as client:
            await play(client, ["w"], **SMALL)
            return [
                await client.request("x", start=True, end=True, image=b"bad", prompt="a"),
                await client.request("x", start=True, end=True),
            ]

    told = str(asyncio.run(scenario()))
    told += page(server)
    administration.probe(server.admin, server.secret, 60.0)
    server.stop()
    assert server.config.log is not None
    log = server.config.log.read_text()
    assert "lingbot_frames_total" in told
    assert "session ended" in log
    assert len(server.secret) == 64
    assert server.secret not in told + log
    assert server.secret != ServerProcess(ServerConfig()).secret


async def _steer(session: WorldSession) -> None:
    """On and on, until the session ends."""
    while True:
        await session.send("w")
        await session.next_chunk()


def test_a_connection_may_be_encrypted(doomed_server: StartConfigured, tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    server = doomed_server(
        environment=SIMULATED,
        exit_timeout_seconds=30,
        arguments=(
            "--grpc-use-ssl=true",
            f"--grpc-server-cert={certificate}",
            f"--grpc-server-key={key}",
        ),
    )
    address = f"localhost:{server.grpc.rpartition(':')[2]}"

    async def scenario() -> None:
        async with WorldClient(address, tls=TLS(root_certificates=certificate)) as client:
            assert len(await play(client, ["w"], **SMALL)) == 1
        for tls in (None, TLS()):  # without encryption, and not trusting this certificate
            async with WorldClient(address, tls=tls) as client:
                with pytest.raises(errors.ConnectionFailed):
                    await play(client, ["w"], **SMALL)

        await eventually(lambda: sessions(server) == 0)
        # Whoever started it reaches it behind its own certificate, and so it stops gracefully.
        administration.probe(server.admin, server.secret, 60.0)
        async with WorldClient(address, tls=TLS(root_certificates=certificate)) as client:
            session = client.open_session(picture(), PROMPT, **SMALL)
            await session.open()
            stopping = asyncio.create_task(asyncio.to_thread(server.stop, 40.0))
            with pytest.raises(errors.ShuttingDown):
                await _steer(session)
            assert await stopping == Leftovers()

    asyncio.run(scenario())
