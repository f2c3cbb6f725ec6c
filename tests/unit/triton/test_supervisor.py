"""When a lost server is started again, how often, and when it is given up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from lingbot_triton.triton import supervisor
from lingbot_triton.triton.administration import AdminEndpoint, AdministrationError
from lingbot_triton.triton.server import ServerConfig, ServerError, ServerProcess
from lingbot_triton.triton.supervisor import RESTART_DELAYS, SILENCE_SECONDS, STABLE_SECONDS

READY, LOST, NEVER_READY, INTERRUPTED = "ready", "lost", "never ready", "interrupted"


class Lives:
    """Servers that live for given times and end in given ways, on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *lives: tuple[str, float]) -> None:
        self.now = 0.0
        self.lives = list(lives)
        self.told: list[ServerProcess] = []
        self.slept: list[float] = []
        monkeypatch.setattr(supervisor, "foreground", self.foreground)
        monkeypatch.setattr(supervisor, "watch", self.watch)
        # The supervisor's own name for the module: other threads use the real one.
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self.slept.append)
        monkeypatch.setattr(supervisor, "time", clock)

    @contextmanager
    def foreground(self, config: ServerConfig) -> Iterator[ServerProcess]:
        if self.lives[0][0] == NEVER_READY:
            self.lives.pop(0)
            raise ServerError("it did not start")
        yield ServerProcess(config)

    def watch(self, server: ServerProcess) -> NoReturn:
        how, seconds = self.lives.pop(0)
        self.now += seconds
        raise KeyboardInterrupt if how == INTERRUPTED else ServerError("it was lost")

    def keep_serving(self, error: type[BaseException]) -> None:
        with pytest.raises(error):
            supervisor.keep_serving(ServerConfig(), self.told.append)


def test_a_signal_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Lives(monkeypatch, (INTERRUPTED, 5))
    story.keep_serving(KeyboardInterrupt)
    assert (len(story.told), story.slept) == (1, [])


def test_a_lost_server_is_started_again_at_the_same_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story = Lives(monkeypatch, (LOST, 5), (LOST, 5), (INTERRUPTED, 5))
    story.keep_serving(KeyboardInterrupt)
    assert story.slept == list(RESTART_DELAYS[:2])
    assert len({(server.grpc, server.http, server.metrics) for server in story.told}) == 1
    assert len({server.secret for server in story.told}) == 3


def test_a_server_that_is_lost_again_and_again_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story = Lives(monkeypatch, *[(LOST, 5)] * 20)
    story.keep_serving(ServerError)
    assert story.slept == list(RESTART_DELAYS)


def test_a_server_that_served_long_is_forgiven(monkeypatch: pytest.MonkeyPatch) -> None:
    lives = [(LOST, 5), (LOST, STABLE_SECONDS + 1), (INTERRUPTED, 5)]
    story = Lives(monkeypatch, *lives)
    story.keep_serving(KeyboardInterrupt)
    assert story.slept == [RESTART_DELAYS[0]] * 2


def test_a_first_start_that_fails_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Lives(monkeypatch, (NEVER_READY, 0))
    story.keep_serving(ServerError)
    assert story.slept == []


def test_a_later_start_that_fails_counts_as_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Lives(monkeypatch, (LOST, 5), (NEVER_READY, 0), (INTERRUPTED, 5))
    story.keep_serving(KeyboardInterrupt)
    assert story.slept == list(RESTART_DELAYS[:2])


class Watched:
    """A server whose orchestrator may die, or fall silent."""

    def __init__(self, *arguments: str) -> None:
        self.config = ServerConfig(arguments=arguments)
        self.secret, self.echoes = "secret", False
        self.admin = AdminEndpoint.of("127.0.0.1:1", arguments)
        self.models = {"orchestrator": 1}

    @contextmanager
    def echoing(self) -> Iterator[None]:
        self.echoes = True
        yield

    def model_processes(self) -> dict[str, int]:
        return self.models

    def check_running(self) -> None:
        pass


def _watch(monkeypatch: pytest.MonkeyPatch, server: Any, answers: bool) -> float:
    """Watch until the server is lost or an hour has passed; seconds that took."""
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        if now > 3600:
            raise KeyboardInterrupt

    @contextmanager
    def probing(server: Any) -> Iterator[Any]:
        yield lambda: now if answers else 0.0

    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    monkeypatch.setattr(supervisor, "probing", probing)
    try:
        supervisor.watch(server)
    except KeyboardInterrupt:
        return now


def test_a_server_that_answers_is_watched_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _watch(monkeypatch, Watched(), answers=True) > 3600


def test_a_server_that_does_not_answer_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ServerError, match=f"has not answered for {SILENCE_SECONDS:.0f} s"):
        _watch(monkeypatch, Watched(), answers=False)


def test_a_server_whose_orchestrator_dies_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Watched()
    reads = iter([{"orchestrator": 1}] * 3 + [{}])
    monkeypatch.setattr(server, "model_processes", lambda: next(reads))
    with pytest.raises(ServerError, match="the process of model orchestrator died"):
        _watch(monkeypatch, server, answers=True)


@pytest.mark.parametrize("mutual", [False, True])
def test_probes_go_on_until_the_end_and_never_behind_mutual_tls(
    monkeypatch: pytest.MonkeyPatch, mutual: bool
) -> None:
    asked: list[str] = []

    def probe(endpoint: AdminEndpoint, secret: str, timeout: float) -> None:
        asked.append(secret)
        if len(asked) == 1:
            raise AdministrationError("busy")

    monkeypatch.setattr(supervisor, "PROBE_SECONDS", 0.01)
    monkeypatch.setattr(supervisor.administration, "probe", probe)
    server: Any = Watched(*["--grpc-use-ssl-mutual=true"] * mutual)
    with supervisor.probing(server) as last_answer:
        first = last_answer()
        for _ in range(1000):
            if len(asked) >= 3:
                break
            if mutual and last_answer() > first:
                break
            supervisor.time.sleep(0.01)
        assert last_answer() > first
    assert asked == [] if mutual else set(asked) == {"secret"}


def test_behind_tls_silence_counts_once_there_was_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = iter([False, False, True, False])

    def probe(endpoint: AdminEndpoint, secret: str, timeout: float) -> None:
        assert endpoint.certificate is not None
        if not next(answers, False):
            raise AdministrationError("not trusted")

    monkeypatch.setattr(supervisor, "PROBE_SECONDS", 0.01)
    monkeypatch.setattr(supervisor.administration, "probe", probe)
    server: Any = Watched("--grpc-use-ssl=true", "--grpc-server-cert", "/c.pem")
    with supervisor.probing(server) as last_answer:
        moments = [last_answer()]
        for _ in range(2000):
            if moments[-1] in moments[:-1]:
                break
            supervisor.time.sleep(0.005)  # as yet it is always now
            moments.append(last_answer())
        supervisor.time.sleep(0.05)
        assert last_answer() == moments[-1]


@pytest.mark.parametrize(
    ("arguments", "certificate", "mutual"),
    [
        ((), None, False),
        (("--grpc-server-cert=/c.pem",), None, False),
        (("--grpc-use-ssl", "true", "--grpc-server-cert=/c.pem"), "/c.pem", False),
        (("--grpc-use-ssl=1", "--grpc-server-cert", "/c.pem"), "/c.pem", False),
        (("--grpc-use-ssl=false", "--grpc-server-cert", "/c.pem"), None, False),
        (("--grpc-use-ssl-mutual=true", "--grpc-use-ssl=true"), None, True),
    ],
)
def test_the_admin_endpoint_follows_tritons_arguments(
    arguments: tuple[str, ...], certificate: str | None, mutual: bool
) -> None:
    expected = Path(certificate) if certificate else None
    endpoint = AdminEndpoint.of("127.0.0.1:1", arguments)
    assert endpoint == AdminEndpoint("127.0.0.1:1", expected, mutual)
