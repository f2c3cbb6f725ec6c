"""Ends a server's sessions, models and connections, so that Triton stops at once and gracefully."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import Protocol

from lingbot_triton.protocol import ORCHESTRATOR
from lingbot_triton.triton.administration import (
    AdminEndpoint,
    AdministrationError,
    CannotUnload,
    drain,
    unload_models,
)
from lingbot_triton.triton.system import hang_up

DRAINED_AFTER = 2 / 3
"""Share of the time to stop after which sessions have ended, or are no longer waited for."""
UNLOADED_AFTER = 0.9
"""Share of the time to stop after which the server is told to stop, whatever is still loaded."""
UNLOADING_SECONDS = 2.0
"""How long models are given to unload before connections are closed, and they are asked, again."""
RETRY_SECONDS = 0.1

log = logging.getLogger(__name__)


class RunningServer(Protocol):
    """What ending the models takes of a `ServerProcess`."""

    http: str
    grpc: str
    metrics: str
    admin: AdminEndpoint
    secret: str
    admin_key: str

    @property
    def pid(self) -> int: ...

    def model_processes(self) -> dict[str, int]: ...


def end_models(server: RunningServer, grace: float, chunk_grace: float) -> None:
    """End all sessions, then all models; the server has `grace` seconds to stop in, all in all.

    Chunks under way have `chunk_grace` seconds to finish.
    """
    unloaded = time.monotonic() + grace * UNLOADED_AFTER
    if ORCHESTRATOR.name in server.model_processes():
        with contextlib.suppress(AdministrationError):
            drain(server.admin, server.secret, grace * DRAINED_AFTER, chunk_grace)
    while (left := unloaded - time.monotonic()) > 0:
        # Triton does not unload the orchestrator while clients have streams open.
        close_connections(server)
        try:
            if unload_models(server.http, server.admin_key, min(left, UNLOADING_SECONDS)):
                break
        except CannotUnload:
            break
        except AdministrationError as error:
            log.warning("the models are not unloaded yet: %s", error)
            time.sleep(min(left, RETRY_SECONDS))
    close_connections(server)


def close_connections(server: RunningServer) -> None:
    """Close every client's connection: Triton's services wait for them when they stop."""
    for address in (server.grpc, server.http, server.metrics):
        hang_up(server.pid, int(address.rpartition(":")[2]))
