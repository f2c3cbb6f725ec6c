"""A model's process ends with its server, however that ended, and takes its memory along.

The Python backend looks after this itself, but not while the process waits for an answer that
the dead server owes it; and the regions of a server that was killed it leaves to nobody.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from pathlib import Path
from threading import Thread

from lingbot_triton.triton.shared_memory import FOLDER, own_regions

GRACE_SECONDS = 1.0


def hold_on_to_server() -> None:
    """Have this process killed, and its regions removed, as soon as its parent has ended.

    Where Linux lets nobody watch processes (before 5.3), the Python backend is left alone with it.
    """
    regions = [FOLDER / name for name in own_regions()]
    with contextlib.suppress(OSError):
        server = os.pidfd_open(os.getppid())
        Thread(target=_let_go, args=(server, regions), name="lifeline", daemon=True).start()


def _let_go(server: int, regions: list[Path]) -> None:
    ended = select.poll()
    ended.register(server, select.POLLIN)
    ended.poll()
    # A thread that asks the server for something now, an update of a metric for instance, never
    # gives Python's lock back. The alarm, to which nobody listens, kills the process all the same.
    signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)
    for path in regions:
        path.unlink(missing_ok=True)
    os.kill(os.getpid(), signal.SIGKILL)
