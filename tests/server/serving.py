"""`scripts/serve` as a program, on free ports."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lingbot_triton.triton.server import SHARED_MEMORY
from lingbot_triton.triton.system import command_line, free_ports, session_members

OPTIONS = ("--simulated=seed-4xh100", "--scale=0.01", "--max-sessions=2")


class Serve:
    """One running program, and the server it has started."""

    def __init__(self, options: Sequence[str] = OPTIONS) -> None:
        ports = free_ports("127.0.0.1")
        addresses = [f"--{name}-port={next(ports)}" for name in ("http", "grpc", "metrics")]
        self.program = subprocess.Popen(
            [sys.executable, "-m", "lingbot_triton.triton.serve", *addresses, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.program.stdout is not None
        self.ready = self.program.stdout.readline()
        self.grpc = self.ready.split()[2]
        self.rest = self.errors = ""
        self.regions: set[Path] = set()
        self.look()

    def look(self) -> None:
        """Find the server that runs now, and its regions, which are to be gone in the end."""
        children = Path(f"/proc/{self.program.pid}/task/{self.program.pid}/children").read_text()
        self.server = int(children)
        self.regions |= {
            SHARED_MEMORY / argument
            for pid in session_members(self.server)
            for argument in command_line(pid)
            if argument.startswith("lingbot-")
        }

    def process(self, model: str) -> int:
        """Process id of a model."""
        return next(
            pid
            for pid in session_members(self.server)
            if any(part.endswith(f"/{model}/1/model.py") for part in command_line(pid))
        )

    def stop(self, number: int) -> None:
        """Send a signal and wait for the end."""
        self.program.send_signal(number)
        self.rest, self.errors = self.program.communicate(timeout=100)

    def everything_gone(self) -> bool:
        regions = [path for path in self.regions if path.exists()]
        return not session_members(self.server) and not regions

    def end(self) -> None:
        """Leave nothing running, whatever a test has done."""
        if self.program.poll() is None:
            self.program.kill()
        self.program.wait()
        for pipe in (self.program.stdout, self.program.stderr):
            assert pipe is not None
            pipe.close()
