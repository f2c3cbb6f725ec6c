"""Real servers for tests: shared by all that want the same settings, or a test's own."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import pytest

from lingbot_triton.settings import PREFIX
from lingbot_triton.triton.server import Leftovers, ServerConfig, ServerProcess
from tests.server.serving import Serve

EXIT_SECONDS = 60
"""Time to stop in: plenty, since the machine may be busy and only the way it ends matters."""

_running: list[ServerProcess] = []


class StartServer(Protocol):
    """Gives a server that is ready. Settings are those of `Settings`: `max_sessions=2`."""

    def __call__(self, **settings: str | int | float) -> ServerProcess: ...


def _start(log: Path, settings: dict[str, str | int | float]) -> ServerProcess:
    environment = {PREFIX + name.upper(): str(value) for name, value in settings.items()}
    config = ServerConfig(environment=environment, log=log, exit_timeout_seconds=EXIT_SECONDS)
    server = ServerProcess(config)
    server.__enter__()
    _running.append(server)
    return server


def _stop(server: ServerProcess) -> Leftovers:
    """Stop the server and check that nothing of it is left; returns what had to be forced."""
    _running.remove(server)
    left = server.stop(grace=EXIT_SECONDS + 5.0)
    assert server.processes() == []
    assert server.regions() == []
    if left != Leftovers():
        print(f"{server.config.environment} did not stop gracefully:\n{server.output()[-6000:]}")
    return left


def _stop_all(servers: Iterable[ServerProcess]) -> list[Leftovers]:
    """Stop servers at the same time: each waits more than it works."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(_stop, servers))


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """Starts servers that tests share: the same settings give the same server.

    When the tests are over, each must stop by itself and leave no process and no shared memory.
    """
    logs = tmp_path_factory.mktemp("servers")
    servers: dict[tuple[tuple[str, str | int | float], ...], ServerProcess] = {}

    def start(**settings: str | int | float) -> ServerProcess:
        key = tuple(sorted(settings.items()))
        if key not in servers:
            servers[key] = _start(logs / f"{len(servers)}.log", settings)
        return servers[key]

    yield start
    assert _stop_all(servers.values()) == [Leftovers()] * len(servers)


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[StartServer]:
    """Starts servers for one test alone, which may do to them whatever it likes.

    It may stop one by itself, and then looks at what that took. The others stop gracefully.
    """
    servers: list[ServerProcess] = []

    def start(**settings: str | int | float) -> ServerProcess:
        servers.append(_start(tmp_path / f"server-{len(servers)}.log", settings))
        return servers[-1]

    yield start
    assert _stop_all(servers) == [Leftovers()] * len(servers)


class StartConfigured(Protocol):
    """Gives a server that is ready; arguments are the fields of `ServerConfig`."""

    def __call__(self, **config: Any) -> ServerProcess: ...


@pytest.fixture(scope="module")
def doomed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartConfigured]:
    """Starts servers for tests that kill their processes; nothing is left of them in the end."""
    servers: list[ServerProcess] = []

    def start(**config: Any) -> ServerProcess:
        log = tmp_path_factory.mktemp("doomed") / "log"
        config = {"log": log, "exit_timeout_seconds": 1} | config
        server = ServerProcess(ServerConfig(**config))
        server.__enter__()  # which leaves nothing where it fails
        servers.append(server)
        _running.append(server)
        return server

    yield start
    with ThreadPoolExecutor() as pool:  # each waits more than it works
        list(pool.map(ServerProcess.stop, servers))
    for server in servers:
        _running.remove(server)
        assert server.processes() == []
        assert server.regions() == []


@pytest.fixture
def serve() -> Iterator[Serve]:
    """`scripts/serve`, ready, with simulated stages that take next to no time."""
    running = Serve()
    yield running
    running.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failing test shows what the servers last said."""
    report = yield
    if report.failed:
        for server in _running:
            lines = [line for line in server.output().splitlines() if line[:1] not in "|+"]
            report.sections.append((f"tritonserver at {server.grpc}", "\n".join(lines[-30:])))
    return report
