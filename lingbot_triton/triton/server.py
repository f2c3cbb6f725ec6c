"""Start a tritonserver on this machine, wait for it, and stop it without leaving anything."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import subprocess
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from lingbot_triton.settings import Settings, SettingsError
from lingbot_triton.triton import administration
from lingbot_triton.triton.explain import explain, last_words
from lingbot_triton.triton.installation import find_installation
from lingbot_triton.triton.launch import backend_threads, fixed_arguments
from lingbot_triton.triton.render import REPOSITORY
from lingbot_triton.triton.server_output import ServerOutput
from lingbot_triton.triton.stopping import end_models
from lingbot_triton.triton.system import (
    dying_with,
    free_ports,
    is_listening,
    is_ready,
    kill_session,
    model_of,
    session_members,
    wait_until_gone,
)

log = logging.getLogger(__name__)

SHARED_MEMORY = Path("/dev/shm")

METRICS_SECONDS = 10.0
"""Time for the metrics' port to open once the server is ready."""
PROGRESS_INTERVAL_SECONDS = 15.0
"""Seconds between progress messages while models load."""

CRASHES = (signal.SIGABRT, signal.SIGBUS, signal.SIGSEGV)
START_ATTEMPTS = 3
"""How often a server is started that crashes before it is ready.

Triton's Python backend gives a model up whose process stands still for a second while it starts, as
where the machine itself is paused. It frees what the process has yet to read, and when that crashes
with a lock held, the backend aborts the whole server.
"""

EXIT_TIMEOUT = "Exit timeout expired"
"""What tritonserver writes when it gives up waiting and exits without finalizing its models."""


class ServerError(RuntimeError):
    """tritonserver did not start, or stopped; the message says why."""


@dataclass(frozen=True)
class ServerConfig:
    """How to start a server; a port of 0 means a free one."""

    repository: Path = REPOSITORY
    host: str = "127.0.0.1"
    http_port: int = 0
    grpc_port: int = 0
    metrics_port: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    tritonserver: Path | None = None
    start_seconds: float = 300.0
    """Time to load every model in."""
    exit_timeout_seconds: int = 6
    reloads_workers: bool = True
    """Whether the orchestrator may start a worker anew whose process died."""
    log: Path | None = None
    """File for the server's output; without one only the last lines are kept, for errors."""
    echo: bool = False
    """Whether the server's output also goes to stderr."""
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Leftovers:
    """How a server stopped, and what it had left behind, which `stop` then removed.

    The defaults are those of a graceful stop that left nothing.
    """

    processes: tuple[int, ...] = ()
    regions: tuple[str, ...] = ()
    exit_code: int = 0
    """As `Popen.returncode`: negative where a signal ended the server."""
    timed_out: bool = False
    """Whether Triton's exit timeout ended before its models were finalized."""


class ServerProcess:
    """One tritonserver and all its processes and shared memory; a context manager.

    The server stops when the thread that started it ends, so that it never outlives its parent.
    """

    def __init__(self, config: ServerConfig | None = None) -> None:
        self.config = config = config or ServerConfig()
        ports = free_ports(config.host)
        self.http = f"{config.host}:{config.http_port or next(ports)}"
        self.grpc = f"{config.host}:{config.grpc_port or next(ports)}"
        self.metrics = f"{config.host}:{config.metrics_port or next(ports)}"
        self.region_prefix = f"lingbot-{secrets.token_hex(6)}-"
        self.secret = secrets.token_hex(32)
        """Proof that a request comes from one of the models, or from here; see `secret.py`."""
        self.admin_key = secrets.token_hex(16)
        """Value of the header ADMIN_HEADER that opens Triton's restricted protocols."""
        self.admin = administration.AdminEndpoint.of(self.grpc, config.arguments)
        """Where administrative requests to the orchestrator go."""
        self._output = ServerOutput(config.log, config.echo)
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> ServerProcess:
        try:
            self.start()
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Process id of tritonserver, and of the session that all its processes are in."""
        if self._process is None:
            raise ServerError("tritonserver was not started")
        return self._process.pid

    def start(self) -> None:
        """Start the server's process; `wait_ready` then says when it serves."""
        installation = find_installation(self.config.tritonserver)
        command = [str(installation.binary), *installation.arguments, *self._arguments()]
        self._process = subprocess.Popen(
            [*command, *self.config.arguments],
            env={
                **os.environ,
                **installation.environment,
                "LINGBOT_SECRET": self.secret,
                "LINGBOT_TRITON_THREADS": str(backend_threads(self.settings)),
                **self.config.environment,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=dying_with(os.getpid()),
        )
        assert self._process.stdout is not None
        self._output.read(self._process.stdout)
        administration.prepare()  # while the models load

    def _arguments(self) -> list[str]:
        arguments = [
            f"--model-repository={self.config.repository.resolve()}",
            f"--exit-timeout-secs={self.config.exit_timeout_seconds}",
            f"--backend-config=python,shm-region-prefix-name={self.region_prefix}",
            f"--backend-config=python,thread-pool-size={backend_threads(self.settings)}",
            *fixed_arguments(self.admin_key, self.config.reloads_workers),
        ]
        for name in ("http", "grpc", "metrics"):
            host, _, port = getattr(self, name).rpartition(":")
            arguments += [f"--{name}-address={host}", f"--{name}-port={port}"]
        return arguments

    @property
    def settings(self) -> Settings:
        """The settings of its models; the defaults where the models will refuse what is given."""
        try:
            return Settings.load(environ={**os.environ, **self.config.environment})
        except SettingsError:
            return Settings()

    def wait_ready(self) -> None:
        """Return once every model serves; raises ServerError if the server stops or is late.

        A server that crashes meanwhile is started again. Triton opens the port of its metrics
        after it has called itself ready.
        """
        started, reported, attempt = time.monotonic(), 0.0, 1
        while not self.is_ready():
            try:
                self.check_running()
            except ServerError:
                if attempt == START_ATTEMPTS or not self._has_crashed():
                    raise
                attempt += 1
                log.warning("tritonserver crashed while it started, and is started again")
                self.stop()
                self.start()
            waited = time.monotonic() - started
            if waited > self.config.start_seconds:
                words = last_words(self._output.lines())
                raise ServerError(f"tritonserver is not ready after {waited:.0f} s; {words}")
            if waited - reported > PROGRESS_INTERVAL_SECONDS:
                reported = waited
                log.warning("the models are still being loaded, for %.0f s now", waited)
            time.sleep(0.05)
        arguments = administration.values_of(self.config.arguments)
        if arguments.get("--allow-metrics") in administration.OFF:
            return
        until = time.monotonic() + METRICS_SECONDS
        while not is_listening(self.metrics) and time.monotonic() < until:
            self.check_running()
            time.sleep(0.01)

    def check_running(self) -> None:
        """Raise ServerError, with the server's reason, if it has stopped by itself."""
        if self._process is None or self._process.poll() is not None:
            self._output.join()
            raise ServerError(explain(self._output.lines()))

    def _has_crashed(self) -> bool:
        return self._process is not None and -(self._process.poll() or 0) in CRASHES

    def is_ready(self) -> bool:
        """Whether the server answers that all its models are ready."""
        return is_ready(self.http)

    def output(self) -> str:
        """The last lines that the server and its models have written."""
        return "\n".join(self._output.lines())

    def echoing(self) -> AbstractContextManager[None]:
        """Within this context the server's output also goes to stderr."""
        return self._output.echoing()

    def processes(self) -> list[int]:
        """Ids of the server's living processes."""
        return session_members(self.pid) if self._process else []

    def model_processes(self) -> dict[str, int]:
        """Model names with the id of a living process of each."""
        return {name: pid for pid in self.processes() if (name := model_of(pid)) is not None}

    def regions(self) -> list[Path]:
        """The shared-memory regions of the server's models."""
        return sorted(SHARED_MEMORY.glob(self.region_prefix + "*"))

    def stop(self, grace: float = 4.0, chunk_grace: float = 1.0) -> Leftovers:
        """Stop the server within `grace` seconds or soon after; take away what it left.

        Its sessions and models are ended first, with `chunk_grace` seconds for the chunks under
        way: on SIGTERM alone Triton would wait for every open sequence.
        """
        if self._process is None:
            return Leftovers()
        deadline = time.monotonic() + grace
        if self._process.poll() is None:
            end_models(self, grace, chunk_grace)
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.0, deadline - time.monotonic()))
        wait_until_gone(self.pid, seconds=0.5)
        processes = kill_session(self.pid)
        exit_code = self._process.wait()
        wait_until_gone(self.pid, seconds=5.0)
        regions = tuple(path.name for path in self.regions())
        for name in regions:
            (SHARED_MEMORY / name).unlink(missing_ok=True)
        self._output.join()
        return Leftovers(processes, regions, exit_code, EXIT_TIMEOUT in self.output())
