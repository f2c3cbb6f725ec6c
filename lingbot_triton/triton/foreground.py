"""A server in the foreground of a terminal: signals stop it, and nothing stops the stopping."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from lingbot_triton.triton.server import ServerConfig, ServerProcess

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def foreground(config: ServerConfig) -> Iterator[ServerProcess]:
    """A server that is ready; Ctrl-C, SIGTERM and SIGHUP raise KeyboardInterrupt in the block.

    Raises InstallationError or ServerError where it does not start. Main thread only.
    """
    server = ServerProcess(config)
    previous = {number: signal.getsignal(number) for number in SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the one that asyncio knows
    signal.signal(signal.SIGTERM, _as_interrupt)
    signal.signal(signal.SIGHUP, _as_interrupt)
    try:
        server.start()
        server.wait_ready()
        yield server
    finally:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        server.stop()
        for number, handler in previous.items():
            signal.signal(number, handler)


def _as_interrupt(number: int, frame: FrameType | None) -> None:
    signal.raise_signal(signal.SIGINT)
