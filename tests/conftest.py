from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Tests press Ctrl-C, which is ignored where a shell runs them in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
