"""What a measurement ran on, so that its numbers can be read."""

from __future__ import annotations

import os
import platform
import re
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("numpy", "grpcio", "tritonclient", "torch", "nvidia-pytriton", "lingbot-triton")


def ran_on() -> dict[str, Any]:
    """The machine, its load at this moment, and the versions of what matters here."""
    return {
        "time": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        "cpu": _first_match("/proc/cpuinfo", r"model name\s*: (.*)") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "priority": _priority(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
    }


def _priority() -> str:
    """How this process competes with others; the server and its models inherit it."""
    policy = {os.SCHED_FIFO: "real time", os.SCHED_RR: "real time", os.SCHED_IDLE: "idle"}
    return policy.get(os.sched_getscheduler(0), f"niceness {os.nice(0)}")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _first_match(path: str, pattern: str) -> str | None:
    found = re.search(pattern, Path(path).read_text())
    return found and found[1].strip()
