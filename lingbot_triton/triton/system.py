"""What starting and stopping a server needs from Linux: ports, process sessions, parental death."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PORTS = range(20_000, 32_000)
"""Where free ports are looked for: below those the kernel gives to outgoing connections."""

PR_SET_PDEATHSIG = 1
PIDFD_GETFD = 438
"""Number of a system call that Python has no name for; the same on every architecture."""

ESTABLISHED = "01"


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


def free_ports(host: str) -> Iterator[int]:
    """Different ports that are free now, in random order."""
    for port in random.sample(PORTS, len(PORTS)):
        if port_is_free(host, port):
            yield port


def session_members(session: int) -> list[int]:
    """Ids of the living processes of a session (`setsid`), zombies left out."""
    return [pid for pid, _, owner in _living() if owner == session]


def children(parent: int) -> list[int]:
    """Ids of a process's living children, zombies left out."""
    return [pid for pid, mother, _ in _living() if mother == parent]


def _living() -> list[tuple[int, int, int]]:
    """Id, parent and session of every living process."""
    living = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            # pid (name) state parent group session …; the name may hold anything
            status = (folder / "stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue  # it ended meanwhile
        if status[0] not in "ZX":
            living.append((int(folder.name), int(status[1]), int(status[3])))
    return sorted(living)


def command_line(pid: int) -> list[str]:
    """The arguments a process was started with; none if it ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")[:-1]
    except OSError:
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
    inodes = _connections(pid, port)
    closed = 0
    with contextlib.suppress(OSError):
        process = os.pidfd_open(pid)
        try:
            for link in Path(f"/proc/{pid}/fd").iterdir():
                if _inode(link) in inodes:
                    descriptor = ctypes.CDLL(None).syscall(PIDFD_GETFD, process, int(link.name), 0)
                    if descriptor >= 0:
                        with socket.socket(fileno=descriptor) as copy:
                            copy.shutdown(socket.SHUT_RDWR)
                            closed += 1
        finally:
            os.close(process)
    return closed


def _connections(pid: int, port: int) -> set[str]:
    """Inodes of the established connections that come in on a port."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if int(fields[1].rpartition(":")[2], 16) == port and fields[3] == ESTABLISHED:
                    inodes.add(fields[9])
    return inodes


def _inode(link: Path) -> str | None:
    try:
        target = os.readlink(link)
    except OSError:
        return None  # closed meanwhile
    return target[len("socket:[") : -1] if target.startswith("socket:[") else None
