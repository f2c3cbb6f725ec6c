"""What starting and stopping a server needs from Linux: ports, process sessions, parental death."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

PORTS = range(20_000, 32_000)
"""Where free ports are looked for: below those the kernel gives to outgoing connections."""

PR_SET_PDEATHSIG = 1
PIDFD_GETFD = 438
"""Number of a system call that Python has no name for; the same on every architecture."""


def port_is_free(host: str, port: int) -> bool:
    """Whether a server could listen on the port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def is_listening(address: str) -> bool:
    """Whether something takes connections at `host:port`."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return False
    return True


def is_ready(http_address: str) -> bool:
    """Whether the tritonserver at `host:port` responds that all its models are ready."""
    host, _, port = http_address.rpartition(":")
    with contextlib.closing(http.client.HTTPConnection(host, int(port), timeout=5)) as connection:
        try:
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False


def free_ports(host: str) -> Iterator[int]:
    """Different ports that are free now, in random order."""
    for port in random.sample(PORTS, len(PORTS)):
        if port_is_free(host, port):
            yield port


def session_members(session: int) -> list[int]:
    """Ids of the living processes of a session (`setsid`), zombies left out."""
    return [pid for pid in psutil.pids() if _session(pid) == session and is_living(pid)]


def kill_session(session: int) -> tuple[int, ...]:
    """Kill every living process of a session; the ids of those that there were."""
    processes = tuple(session_members(session))
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return processes


def children(parent: int) -> list[int]:
    """Ids of a process's living children, zombies left out."""
    try:
        processes = psutil.Process(parent).children()
    except psutil.NoSuchProcess:
        return []
    return sorted(process.pid for process in processes if is_living(process.pid))


def is_living(pid: int) -> bool:
    """Whether the process runs, sleeps or is stopped; a zombie has ended."""
    try:
        status = psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return False
    return status not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None  # it ended meanwhile


def command_line(pid: int) -> list[str]:
    """The arguments a process was started with; none if it ended, or belongs to another user."""
    try:
        arguments: list[str] = psutil.Process(pid).cmdline()
        return arguments
    except psutil.Error:
        return []


def model_of(pid: int) -> str | None:
    """Name of the Triton model that a process of the Python backend runs; None for any other."""
    for argument in command_line(pid):
        if argument.endswith("/model.py"):
            return Path(argument).parts[-3]
    return None


def wait_until_gone(session: int, seconds: float) -> None:
    """Return when the session has no living process, at the latest after `seconds`."""
    deadline = time.monotonic() + seconds
    while session_members(session) and time.monotonic() < deadline:
        time.sleep(0.02)


def dying_with(parent: int) -> Callable[[], None]:
    """What a child calls before it becomes another program: SIGTERM when its parent is gone.

    Linux counts the parent as gone when the *thread* that started the child ends.
    """
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return ask


def hang_up(pid: int, port: int) -> int:
    """Close a child's TCP connections on one of its own ports; how many there were.

    Linux lets a parent take a copy of its child's sockets. Where it does not, nothing happens.
    """
    closed = 0
    with contextlib.suppress(OSError, psutil.Error):
        connections = psutil.Process(pid).net_connections("tcp")
        process = os.pidfd_open(pid)
        try:
            for connection in connections:
                if connection.status == psutil.CONN_ESTABLISHED and connection.laddr.port == port:
                    closed += _shut_down(process, connection.fd, port)
        finally:
            os.close(process)
    return closed


def _shut_down(process: int, number: int, port: int) -> bool:
    """Shut down the process's socket of this number, unless the number is another file's by now."""
    descriptor = ctypes.CDLL(None).syscall(PIDFD_GETFD, process, number, 0)
    if descriptor < 0:
        return False
    try:
        copy = socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        return False
    with copy, contextlib.suppress(OSError):
        if copy.getsockname()[1] == port:
            copy.shutdown(socket.SHUT_RDWR)
            return True
    return False
