"""A server in the foreground of a terminal: which signals stop it, and how patiently."""

from __future__ import annotations

import signal

import pytest

from lingbot_triton.triton import foreground
from lingbot_triton.triton.server import Leftovers, ServerConfig, ServerProcess

DRAIN = 2.5
NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def stops(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, ...]]:
    """Of servers that are ready at once: the times that they were given to stop in."""
    times: list[tuple[float, ...]] = []

    def stop(self: ServerProcess, *seconds: float) -> Leftovers:
        times.append(seconds)
        return Leftovers()

    for name in ("start", "wait_ready"):
        monkeypatch.setattr(ServerProcess, name, lambda self: None)
    monkeypatch.setattr(ServerProcess, "stop", stop)
    return times


def config() -> ServerConfig:
    return ServerConfig(environment={"LINGBOT_DRAIN_SECONDS": str(DRAIN)})


@pytest.mark.parametrize(
    ("number", "seconds"),
    [
        (signal.SIGINT, (3.8,)),
        (signal.SIGHUP, (3.8,)),
        (signal.SIGTERM, (7.0 + DRAIN, DRAIN)),
    ],
    ids=["Ctrl-C", "SIGHUP", "SIGTERM"],
)
def test_a_signal_interrupts_the_block_and_the_server_is_stopped_in_its_time(
    stops: list[tuple[float, ...]], number: signal.Signals, seconds: tuple[float, ...]
) -> None:
    before = [signal.getsignal(each) for each in NUMBERS]
    with pytest.raises(KeyboardInterrupt), foreground.foreground(config()):
        signal.raise_signal(number)
    assert stops == [seconds]
    assert [signal.getsignal(each) for each in NUMBERS] == before


@pytest.mark.parametrize("number", NUMBERS)
def test_nothing_stops_the_stopping(
    stops: list[tuple[float, ...]], monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    def stop(self: ServerProcess, *seconds: float) -> Leftovers:
        signal.raise_signal(number)
        stops.append(seconds)
        return Leftovers()

    monkeypatch.setattr(ServerProcess, "stop", stop)
    with pytest.raises(KeyboardInterrupt), foreground.foreground(config()):
        pass
    assert stops == [(3.8,)]
