"""Keeps a server serving: watches it with real requests, and starts it again when it is lost."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from threading import Event, Thread
from typing import NoReturn

from lingbot_triton.protocol import ORCHESTRATOR
from lingbot_triton.triton import administration
from lingbot_triton.triton.foreground import foreground, interrupts
from lingbot_triton.triton.server import ServerConfig, ServerError, ServerProcess

log = logging.getLogger(__name__)

WATCH_SECONDS = 0.5
PROBE_SECONDS = 5.0
SILENCE_SECONDS = 30.0
"""A server whose orchestrator answers no probe for so long is lost."""

RESTART_DELAYS = (0.0, 1.0, 5.0, 20.0, 60.0)
"""Seconds before each attempt to start a lost server again; after the last one, it is given up."""

STABLE_SECONDS = 300.0
"""A server that served for so long was well: its loss counts as the first again."""


def keep_serving(config: ServerConfig, tell: Callable[[ServerProcess], None]) -> NoReturn:
    """Run a server for ever; `tell` is called each time one is ready.

    Returns by KeyboardInterrupt, when a signal asks for the end, and raises ServerError where the
    first start fails, or where the server is lost again and again. Main thread only.
    """
    with interrupts():
        lost = 0
        while True:
            started, served = time.monotonic(), False
            try:
                with foreground(config) as server:
                    served = True
                    config = _with_ports_of(server)
                    tell(server)
                    watch(server)
            except ServerError as error:
                if served and time.monotonic() - started > STABLE_SECONDS:
                    lost = 0
                if lost == len(RESTART_DELAYS) or not (served or lost):
                    raise
                log.error("%s; it is started again in %g s", error, RESTART_DELAYS[lost])
                time.sleep(RESTART_DELAYS[lost])
                lost += 1


def _with_ports_of(server: ServerProcess) -> ServerConfig:
    """A server started again is found where the lost one was."""
    http, grpc, metrics = (
        int(address.rpartition(":")[2]) for address in (server.http, server.grpc, server.metrics)
    )
    return replace(server.config, http_port=http, grpc_port=grpc, metrics_port=metrics)


def watch(server: ServerProcess) -> NoReturn:
    """Raise ServerError once the server cannot serve any more.

    The orchestrator reloads workers. Nothing reloads the orchestrator itself, and without it
    Triton still reports that it is ready.
    """
    model = ORCHESTRATOR.name
    watched = model in server.model_processes()
    with server.echoing(), probing(server) as last_answer:
        while True:
            time.sleep(WATCH_SECONDS)
            server.check_running()
            if not watched:
                continue
            if model not in server.model_processes():
                raise ServerError(f"the process of model {model} died, so the server was stopped")
            silence = time.monotonic() - last_answer()
            if silence > SILENCE_SECONDS:
                raise ServerError(
                    f"model {model} has not answered for {silence:.0f} s, so the server was stopped"
                )


@contextlib.contextmanager
def probing(server: ServerProcess) -> Iterator[Callable[[], float]]:
    """Probes the orchestrator in a thread; yields a function that gives the last response's time.

    Behind mutual TLS it is not probed. Behind TLS silence counts only after a first response: the
    certificate may be one that this process does not trust.
    """
    endpoint = server.admin
    answered = time.monotonic()
    responds = endpoint.certificate is None and not endpoint.mutual
    stop = Event()

    def ask() -> None:
        nonlocal answered, responds
        while not stop.wait(PROBE_SECONDS):
            try:
                administration.probe(endpoint, server.secret, timeout=SILENCE_SECONDS / 3)
            except administration.AdministrationError as error:
                log.warning("the orchestrator does not answer: %s", error)
            else:
                answered, responds = time.monotonic(), True

    if not endpoint.mutual:
        Thread(target=ask, name="probe", daemon=True).start()
    try:
        yield lambda: answered if responds else time.monotonic()
    finally:
        stop.set()
