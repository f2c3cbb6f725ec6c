"""A model's process ends with its server, however that ended, and takes its memory along.

The Python backend does this itself, except while the process waits for a response of the dead
server; and it does not remove the shared memory of a server that was killed.
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

    Before Linux 5.3, which cannot watch processes, this is left to the Python backend.
    """
    regions = [FOLDER / name for name in own_regions()]
    with contextlib.suppress(OSError):
        server = os.pidfd_open(os.getppid())
        Thread(target=_let_go, args=(server, regions), name="lifeline", daemon=True).start()


def _let_go(server: int, regions: list[Path]) -> None:
    ended = select.poll()
    ended.register(server, select.POLLIN)
    ended.poll()
    # A thread that waits for the dead server, to update a metric for instance, never releases the
    # GIL. The alarm has no handler, so it kills the process even then.
    signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)
    for path in regions:
        path.unlink(missing_ok=True)
    os.kill(os.getpid(), signal.SIGKILL)
