from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from itertools import islice

import pytest

from lingbot_triton.triton.system import (
    PORTS,
    free_ports,
    port_is_free,
    session_members,
    wait_until_gone,
)
from tests.unit.orchestrator.virtual_time import Clock

SLEEPER_WITH_CHILD = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
STARTS_A_DYING_CHILD = """
import os, subprocess, sys
from lingbot_triton.triton.system import dying_with
child = subprocess.Popen(["sleep", "60"], preexec_fn=dying_with(os.getpid()), stdout=-3)
print(child.pid, flush=True)
input()
"""


def _until(condition) -> bool:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(condition())


def test_a_port_that_is_listened_on_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not port_is_free("127.0.0.1", server.getsockname()[1])


def test_free_ports_are_different_and_free() -> None:
    ports = list(islice(free_ports("127.0.0.1"), 20))
    assert len(set(ports)) == 20
    assert all(port in PORTS and port_is_free("127.0.0.1", port) for port in ports)


def test_a_session_holds_grandchildren_and_no_zombies() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEPER_WITH_CHILD], stdin=subprocess.PIPE, start_new_session=True
    )
    assert _until(lambda: len(session_members(process.pid)) == 2)
    assert process.pid in session_members(process.pid)
    for pid in session_members(process.pid):
        os.kill(pid, signal.SIGKILL)
    wait_until_gone(process.pid, seconds=10)
    assert session_members(process.pid) == []  # although nobody has waited for it yet
    process.communicate()


def test_waiting_for_a_living_session_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("lingbot_triton.triton.system.time", clock)
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        try:
            wait_until_gone(process.pid, seconds=0.1)
            assert 0.1 <= clock.now < 0.15
            assert process.poll() is None
        finally:
            process.kill()


def test_a_child_dies_with_its_killed_parent() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", STARTS_A_DYING_CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert child in session_members(parent.pid)
    parent.kill()
    assert _until(lambda: session_members(parent.pid) == [])
    parent.communicate()
