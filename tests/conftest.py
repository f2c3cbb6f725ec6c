from __future__ import annotations

import os

from lingbot_triton.settings import PREFIX


def pytest_configure() -> None:
    """Tests see the settings they choose, not those of the shell they are started from."""
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        del os.environ[name]
    os.environ[PREFIX + "DEVICE"] = "cpu"  # the same numbers on every machine
    os.environ["MPLBACKEND"] = "Agg"
