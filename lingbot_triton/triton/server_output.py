"""Keeps what a server's processes write: its last lines, a log file, and stderr."""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import IO

KEPT_LINES = 400
JOIN_SECONDS = 5.0


class ServerOutput:
    """Reads a server's output in a thread, so that the server never waits for its reader."""

    def __init__(self, log: Path | None = None, echo: bool = False) -> None:
        self._echo = self._always_echo = echo
        self._log = log
        self._tail: deque[str] = deque(maxlen=KEPT_LINES)
        self._reader: Thread | None = None

    def read(self, stream: IO[str]) -> None:
        """Read the stream to its end, in the background, and close it."""
        self._reader = Thread(target=self._read, args=(stream,), daemon=True)
        self._reader.start()

    def _read(self, stream: IO[str]) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(stream)
            mode = "a" if self._tail else "w"  # a server that is started again goes on in its log
            log = stack.enter_context(self._log.open(mode)) if self._log else None
            for line in stream:
                self._tail.append(line.rstrip("\n"))
                if log:
                    log.write(line)
                    log.flush()
                if self._echo:
                    sys.stderr.write(line)

    @contextlib.contextmanager
    def echoing(self) -> Iterator[None]:
        """Within the block, lines also go to stderr."""
        self._echo = True
        try:
            yield
        finally:
            self._echo = self._always_echo

    def join(self) -> None:
        """Wait until everything is read that was written, a few seconds at most."""
        if self._reader:
            self._reader.join(JOIN_SECONDS)

    def lines(self) -> list[str]:
        """The last lines that were read."""
        return list(self._tail)
