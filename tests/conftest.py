from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

from lingbot_triton.settings import PREFIX

# Read when gRPC is imported. Its handlers of forks run in the child that is to become a server, and
# may end it: "epoll_wait error: Bad file descriptor".
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"
# Read when torch is imported. Two processes of tests and their servers share the cores: threads of
# OpenMP that spin, or more of them than cores, would only take time from one another.
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
os.environ["OMP_NUM_THREADS"] = "1"

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


class GroupScheduling(LoadScopeScheduling):
    """Tests of a group run in one process, one after another.

    A server is thus started by one process only, and a file's fixtures are made once. Groups by
    marks (`loadgroup`) will not do: pytest-xdist 3.8 loses them with pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid.partition("::")[0])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> GroupScheduling:
    """Used where tests run in several processes."""
    return GroupScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups of server tests come first, as they take longest, then the files of golden tests.

    Short files fill the processes up.
    """
    first = (*GROUPS, REST)

    def rank(item: pytest.Item) -> int:
        group = group_of(item.nodeid.partition("::")[0])
        if group in first:
            return first.index(group)
        return len(first) + (not group.startswith("tests/golden"))

    items.sort(key=rank)


def group_of(file: str) -> str:
    """The group of a test file, named from the root: a file is its own, but for server tests."""
    if not file.startswith("tests/server/"):
        return file
    named = (group for group, modules in GROUPS.items() if Path(file).stem in modules)
    return next(named, REST)
