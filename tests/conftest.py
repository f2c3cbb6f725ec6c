from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from lingbot_triton.settings import PREFIX

# Read when gRPC is imported. Its handlers of forks run in the child that is to become a server, and
# may end it: "epoll_wait error: Bad file descriptor".
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"
# Read when torch is imported. Two processes of tests and their servers share the cores: threads of
# OpenMP that spin, or more of them than cores, would only take time from one another.
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
os.environ["OMP_NUM_THREADS"] = "1"

SERVER_TESTS = Path(__file__).parent / "server"
WAITING = (
    *("test_stuck_worker", "test_worker_death", "test_vanishing_clients", "test_shutdown"),
    "test_chaos",
)
"""Modules whose servers are killed, stopped or starved: they wait more than they compute."""
COMPUTING = (
    *("test_exactness", "test_fidelity", "test_placement", "test_presets", "test_tiny_world"),
    *("test_command_line", "test_bad_input", "test_bench_computing"),
)
"""Modules whose servers compute with real weights."""
GROUPS = {"waiting": WAITING, "computing": COMPUTING}
REST = "simulated"
"""All other server tests: those on servers whose stages only take a little time."""


def pytest_configure() -> None:
    """Tests see what they choose, not the settings and signals of where they are started from."""
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        del os.environ[name]
    os.environ[PREFIX + "DEVICE"] = "cpu"  # the same numbers on every machine
    os.environ["MPLBACKEND"] = "Agg"
    # A shell's background jobs ignore Ctrl-C, which tests press.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test its group: the tests of a group run in one process, one after another.

    A server is thus started by one process only, and a file's fixtures are made once. The groups
    of server tests come first, as they take longest, then the files of golden tests; short files
    fill the processes up.
    """
    first = (*GROUPS, REST)
    groups = {id(item): group_of(item.path) for item in items}

    def rank(item: pytest.Item) -> int:
        group = groups[id(item)]
        if group in first:
            return first.index(group)
        return len(first) + (not group.startswith("golden"))

    for item in items:
        item.add_marker(pytest.mark.xdist_group(groups[id(item)]))
    items.sort(key=rank)


def group_of(path: Path) -> str:
    """The group of a test file: a file of its own, but for the server tests."""
    if path.parent != SERVER_TESTS:
        return str(path.relative_to(SERVER_TESTS.parent))
    named = (group for group, modules in GROUPS.items() if path.stem in modules)
    return next(named, REST)
