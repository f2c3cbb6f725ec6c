"""What the server's processes hold at one moment, as Linux tells."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from lingbot_triton.triton.server import ServerProcess
from lingbot_triton.triton.system import command_line

SERVER, CLIENT = "tritonserver", "client"


@dataclass(frozen=True)
class Usage:
    """One process."""

    rss_kb: int
    threads: int
    files: int

    @classmethod
    def of(cls, pid: int) -> Usage:
        folder = Path(f"/proc/{pid}")
        status = (folder / "status").read_text()
        rss, threads = (
            int(re.findall(rf"^{name}:\s+(\d+)", status, re.MULTILINE)[0])
            for name in ("VmRSS", "Threads")
        )
        return cls(rss, threads, len(os.listdir(folder / "fd")))


@dataclass(frozen=True)
class Sample:
    """Everything after so many chunks, or sessions."""

    done: int
    processes: dict[str, Usage]
    """By model, or `tritonserver`, or `client` for the process that plays."""
    shared_kb: int
    """Shared memory of the server, as far as it is in use at all."""

    @classmethod
    def take(cls, server: ServerProcess, done: int) -> Sample:
        processes = {_name(server, pid): Usage.of(pid) for pid in server.processes()}
        processes[CLIENT] = Usage.of(os.getpid())
        blocks = sum(path.stat().st_blocks for path in server.regions())
        return cls(done, processes, blocks // 2)


def _name(server: ServerProcess, pid: int) -> str:
    if pid == server.pid:
        return SERVER
    models = (arg for arg in command_line(pid) if arg.endswith("/1/model.py"))
    return Path(next(models, f"/process-{pid}/1/model.py")).parts[-3]
