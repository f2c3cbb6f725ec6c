"""The worker processes of a running server: which are dead, and starting them anew."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Iterable, Sequence

import triton_python_backend_utils as pb_utils

from lingbot_triton.errors import StageDead, StageFailed
from lingbot_triton.triton.shared_memory import (
    YOUNG_SECONDS,
    own_region_prefix,
    remove_orphans,
)
from lingbot_triton.triton.system import children, command_line, model_of
from lingbot_triton.triton.threads import thread_pool

RELOAD_SECONDS = 10.0
log = logging.getLogger(__name__)


class TritonWorkers:
    """`interfaces.Workers`: this server's processes of the Python backend, stage by stage."""

    def __init__(self) -> None:
        self._reloads: Counter[str] = Counter()
        self._all_dead: set[str] = set()
        self._thread = thread_pool(1, "reload")

    def shut_down(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def generation(self, stage: str) -> int:
        """How often the stage was reloaded: a response from before is not about today's workers."""
        return self._reloads[stage]

    def all_dead(self, stage: str) -> bool:
        """Whether the stage is known to have no living process at all."""
        return stage in self._all_dead

    def mark_dead(self, error: StageDead) -> None:
        """Triton gave a process up: it is dead, or stopped, or too slow to report that it is well.

        It is killed: late responses of a process that goes on would be taken for those to later
        requests.
        """
        server = os.getppid()
        _kill(pid for pid in children(server) if error.instance in command_line(pid))
        if not any(model_of(pid) == error.stage for pid in children(server)):
            self._all_dead.add(error.stage)

    async def reload(self, stage: str) -> None:
        """Unload and load the model, which starts its processes anew; raises StageFailed."""
        if not controls_models(command_line(os.getppid())):
            # Not tried: a refused request to unload a model may take the whole server down.
            raise StageFailed("this needs tritonserver --model-control-mode=explicit")
        self._reloads[stage] += 1
        await asyncio.get_running_loop().run_in_executor(self._thread, self._reload, stage)

    def _reload(self, stage: str) -> None:
        server = os.getppid()
        # Unloading a model that has a stopped process takes the whole server down.
        _kill(pid for pid in children(server) if model_of(pid) == stage)
        try:
            pb_utils.unload_model(stage)
            deadline = time.monotonic() + RELOAD_SECONDS
            while pb_utils.is_model_ready(stage) and time.monotonic() < deadline:
                time.sleep(0.05)
            pb_utils.load_model(stage)
        except Exception as error:
            raise StageFailed(str(error)) from None
        self._all_dead.discard(stage)

    async def remove_orphaned_memory(self) -> None:
        """Remove the shared memory of dead processes.

        Some may be young still, or mapped for a moment by a process that is only being forked.
        """
        for _ in range(3):
            await asyncio.sleep(YOUNG_SECONDS)
            await asyncio.get_running_loop().run_in_executor(self._thread, _remove_orphans)


def controls_models(command: Sequence[str]) -> bool:
    """Whether a server started by `command` lets its models load and unload one another."""
    return "--model-control-mode explicit" in " ".join(command).replace("=", " ")


def _kill(processes: Iterable[int]) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _remove_orphans() -> None:
    prefix = own_region_prefix()
    if prefix is not None and (removed := remove_orphans(prefix, os.getppid())):
        log.info("removed shared memory of dead processes: %s", ", ".join(removed))
