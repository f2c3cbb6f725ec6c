"""A server in the foreground of a terminal: signals stop it, further ones do not interrupt that."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from lingbot_triton.triton.server import ServerConfig, ServerProcess

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOP_SECONDS = 3.8
TERMINATE_SECONDS = 7.0
"""Seconds to stop in after SIGTERM, besides `drain_seconds`, in which chunks under way may finish:
longer than after Ctrl-C, where a person waits at the terminal."""


@contextmanager
def foreground(config: ServerConfig) -> Iterator[ServerProcess]:
    """A server that is ready; Ctrl-C, SIGTERM and SIGHUP raise KeyboardInterrupt in the block.

    One that comes while the server stops for another reason raises it afterwards. Raises
    InstallationError or ServerError where the server does not start. Main thread only.
    """
    server = ServerProcess(config)
    with interrupts() as received:
        interrupted = False
        try:
            server.start()
            server.wait_ready()
            yield server
        except KeyboardInterrupt:
            interrupted = True
            raise
        finally:
            terminated = signal.SIGTERM in received
            late: list[int] = []
            for number in SIGNALS:
                signal.signal(number, lambda number, frame: late.append(number))
            if terminated:
                drain = server.settings.drain_seconds
                server.stop(TERMINATE_SECONDS + drain, drain)
            else:
                server.stop(STOP_SECONDS)
            if late and not interrupted:
                raise KeyboardInterrupt


@contextmanager
def interrupts() -> Iterator[list[int]]:
    """Every signal that stops a server raises KeyboardInterrupt; those but Ctrl-C are noted."""
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.append(number)
        signal.raise_signal(signal.SIGINT)

    previous = {number: signal.signal(number, interrupt) for number in SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the one that asyncio knows
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
