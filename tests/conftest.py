from __future__ import annotations

import os
import signal

from lingbot_triton.settings import PREFIX


def pytest_configure() -> None:
    """Tests see what they choose, not the settings and signals of where they are started from."""
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        del os.environ[name]
    os.environ[PREFIX + "DEVICE"] = "cpu"  # the same numbers on every machine
    os.environ["MPLBACKEND"] = "Agg"
    # A shell's background jobs ignore Ctrl-C, which tests press.
    signal.signal(signal.SIGINT, signal.default_int_handler)
