"""What the documentation and the image's files show, on a real server."""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from lingbot_client import BadRequest, WorldClient
from lingbot_client.picture import default_picture, encode_picture

from lingbot_triton.metrics import METRICS, WORKER_STATES, Kind
from lingbot_triton.triton.render import REPOSITORY
from lingbot_triton.triton.scrape import scrape, total
from lingbot_triton.triton.server import ServerProcess
from tests.documents import tables
from tests.server.conftest import StartServer
from tests.server.play import PROMPT, eventually, page, picture, sessions

ROOT = REPOSITORY.parent
HEALTHCHECK = ROOT / "docker" / "healthcheck.py"


@pytest.fixture(scope="module")
def server(shared_server: StartServer) -> ServerProcess:
    return shared_server(simulated="seed-4xh100", simulated_scale=0.05, max_sessions=4)


def run(server: ServerProcess, document: str, folder: Path) -> str:
    """What the one Python example of a document prints, in a folder with a picture."""
    text = (ROOT / document).read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert "localhost:8001" in example
    (folder / "picture.png").write_bytes(encode_picture(default_picture()))
    return subprocess.run(
        [sys.executable, "-c", example.replace("localhost:8001", server.grpc)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    ).stdout


def health(grpc: str, metrics: str) -> tuple[int, str]:
    """Exit code and words of the image's health check."""
    done = subprocess.run(
        [sys.executable, str(HEALTHCHECK), grpc, metrics],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_the_client_of_the_readme_plays(server: ServerProcess, tmp_path: Path) -> None:
    lines = run(server, "README.md", tmp_path).splitlines()
    assert [line.split()[0] for line in lines] == ["0", "1", "2", "3"]
    assert (tmp_path / "walk.mp4").stat().st_size > 1000


def test_the_client_of_the_protocol_plays(server: ServerProcess, tmp_path: Path) -> None:
    lines = run(server, "docs/protocol.md", tmp_path).splitlines()
    statuses = [line.split()[0] for line in lines]
    assert statuses == ["READY", "FRAMES", "FRAMES", "FRAMES", "CLOSED"]


def test_info_has_the_keys_that_are_documented(server: ServerProcess) -> None:
    async def scenario() -> None:
        async with WorldClient(server.grpc) as client:
            async with client.open_session(picture(), PROMPT) as session:
                await session.send("w")
                part = await session.next_part()
            (ready,) = tables("docs/protocol.md", "`info` of READY")
            frames, milliseconds = tables("docs/protocol.md", "`info` of FRAMES")
            (closed,) = tables("docs/protocol.md", "`info` of CLOSED")
            assert set(session.ready) == set(ready)
            assert set(part.info) == set(frames)
            assert set(part.info["ms"]) == set(milliseconds)
            assert session.summary is not None
            assert set(session.summary) == set(closed)

    asyncio.run(scenario())


def test_perf_analyzer_by_hand_plays_whole_sessions(server: ServerProcess, tmp_path: Path) -> None:
    blocks = re.findall(r"^```bash\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    (play_it,) = (block for block in blocks if "perf_analyzer" in block)
    (make_data,) = (block for block in blocks if "load_data" in block)
    before = scrape(server.metrics)
    script = make_data + play_it.replace("localhost:8001", server.grpc).replace("200", "24")
    done = subprocess.run(
        ["bash", "-ec", script.replace("controls.json", str(tmp_path / "controls.json"))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Throughput" in done.stdout
    risen = {name: value - before[name] for name, value in scrape(server.metrics).items()}
    assert risen["lingbot_chunks_total"] >= 10
    assert total(risen, "lingbot_rejections_total") == 0


def test_the_health_check_plays_and_tells(server: ServerProcess) -> None:
    assert health(server.grpc, server.metrics) == (0, "healthy: 9 frames of 96x64\n")


def test_a_full_server_is_healthy_and_nobody_is_refused(server: ServerProcess) -> None:
    def refused() -> float:
        return scrape(server.metrics)['lingbot_rejections_total{code="SESSION_LIMIT"}']

    async def scenario() -> tuple[int, str]:
        async with WorldClient(server.grpc) as client, contextlib.AsyncExitStack() as held:
            for _ in range(4):
                await held.enter_async_context(client.open_session(picture(), PROMPT))
            await eventually(lambda: sessions(server) == 4)  # the check goes by the gauge
            return await asyncio.to_thread(health, server.grpc, server.metrics)

    before = refused()
    words = "healthy: sessions are open, and the orchestrator answers\n"
    assert asyncio.run(scenario()) == (0, words)
    assert refused() == before


def test_a_server_that_is_not_there_is_unhealthy() -> None:
    code, words = health("127.0.0.1:1", "127.0.0.1:1")
    assert (code, words.partition(":")[0]) == (1, "unhealthy")


def test_every_family_is_exported_under_its_name(server: ServerProcess) -> None:
    async def scenario() -> None:
        async with WorldClient(server.grpc) as client:
            async with client.open_session(picture(), PROMPT) as session:
                await session.send()
                await session.next_chunk()
            with pytest.raises(BadRequest):
                await client.open_session(picture(), PROMPT, seed=-1).open()

    asyncio.run(scenario())
    text = page(server)
    exported = set(re.findall(r"^([a-z_]+)(?:\{.*\})? \S+$", text, re.MULTILINE))
    for spec in (*METRICS, WORKER_STATES):
        suffixes = ("_bucket", "_sum", "_count") if spec.kind is Kind.HISTOGRAM else ("",)
        for suffix in suffixes:
            assert spec.name + suffix in exported
        if spec.label:
            assert re.search(rf'^{spec.name}\w*{{.*\b{spec.label}="', text, re.MULTILINE)
