"""Time that leaves out what a machine, shared with others, stands still."""

from __future__ import annotations

import time
from threading import Thread

_TICK = 0.01


class _Stopwatch(Thread):
    seconds = 0.0

    def run(self) -> None:
        last = time.monotonic()
        while True:
            time.sleep(_TICK)
            now = time.monotonic()
            self.seconds += min(now - last, 2 * _TICK)
            last = now


_running = _Stopwatch(name="stopwatch", daemon=True)


def machine_seconds() -> float:
    """Seconds from some moment on; a bound on how long the server takes is held against these."""
    if not _running.is_alive():
        _running.start()
    return _running.seconds
