"""A model's process ends with its server and takes its region along; other memory stays."""

from __future__ import annotations

import subprocess
import sys
import uuid

from lingbot_triton.triton.shared_memory import FOLDER

MODEL = """
import mmap, sys, time
from lingbot_triton.triton import lifeline
files = [open(path, "w+b") for path in sys.argv[1:]]
for file in files:
    file.truncate(4096)
maps = [mmap.mmap(file.fileno(), 0) for file in files]
lifeline.GRACE_SECONDS = 600  # the alarm, if the machine stalls, would come before the rest
lifeline.hold_on_to_server()
print("ready", flush=True)
time.sleep(60)
print("left alone", flush=True)
"""
SERVER = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]])"


def test_a_model_ends_with_its_killed_server_and_takes_its_region_along() -> None:
    own = FOLDER / f"lingbot-test-{uuid.uuid4()}"
    other = FOLDER / f"lingbot-test-{uuid.uuid4().hex}-of-another-library"
    command = [sys.executable, "-c", SERVER, MODEL, str(own), str(other)]
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            assert own.exists()
            server.kill()
            assert server.stdout.read() == b""  # until the model's process has ended, too
        assert not own.exists()
        assert other.exists()
    finally:
        for path in (own, other):
            path.unlink(missing_ok=True)
