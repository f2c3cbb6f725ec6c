"""The secret that the models of one running server share, so that only they call each other.

It is LINGBOT_SECRET where that is set, else random per server start: the first model process of
a server writes it to a file that only this user can read, named after the server process.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from pathlib import Path

VARIABLE = "LINGBOT_SECRET"


def server_secret(server_pid: int | None = None) -> bytes:
    """The secret of the server whose process `server_pid` is (default: this process's parent)."""
    configured = os.environ.get(VARIABLE)
    if configured:
        return configured.encode()
    folder = _folder()
    path = folder / _identity(os.getppid() if server_pid is None else server_pid)
    _remove_stale(folder)
    with contextlib.suppress(FileNotFoundError):
        return path.read_bytes()
    descriptor, draft = tempfile.mkstemp(dir=folder, prefix=".draft-")
    with os.fdopen(descriptor, "wb") as file:
        file.write(secrets.token_hex(32).encode())
    # A link fails where the file exists, so all processes agree on the first complete one.
    with contextlib.suppress(FileExistsError):
        os.link(draft, path)
    os.unlink(draft)
    return path.read_bytes()


def forget_secret(server_pid: int | None = None) -> None:
    """Remove this server's file; it may be called twice."""
    path = _folder() / _identity(os.getppid() if server_pid is None else server_pid)
    path.unlink(missing_ok=True)


def _folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"lingbot-triton-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{folder} must belong to this user alone (mode 0700)")
    return folder


def _identity(pid: int) -> str:
    """The process id with its start time, since process ids are used again.

    In ticks since the machine's start: psutil adds the wall clock, whose corrections would give
    the same process two names.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return f"{pid}-{fields[19]}"


def _remove_stale(folder: Path) -> None:
    for path in folder.iterdir():
        pid = path.name.split("-")[0]
        if not pid.isdigit():
            continue
        try:
            alive = _identity(int(pid)) == path.name
        except (FileNotFoundError, ProcessLookupError):
            alive = False
        if not alive:
            path.unlink(missing_ok=True)
