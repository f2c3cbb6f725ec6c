"""Shared-memory regions of the Python backend that outlived the processes using them."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path

FOLDER = Path("/dev/shm")
_ENDS_WITH_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
YOUNG_SECONDS = 2.0
"""A region this young may belong to a process that is about to map it."""


def mapped_names(folder: Path = FOLDER, ignored: int | None = None) -> set[str]:
    """Names of the files in `folder` that any readable process, except `ignored`, has mapped.

    `psutil.Process.memory_maps` reads `smaps`, which took 27 times as long.
    """
    prefix = f"{folder}/"
    names: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        if maps.parent.name == str(ignored):
            continue
        with contextlib.suppress(OSError):
            for line in maps.read_text().splitlines():
                _, found, name = line.partition(prefix)
                if found:
                    names.add(name.removesuffix(" (deleted)"))
    return names


def own_regions(folder: Path = FOLDER) -> set[str]:
    """Names of the regions that this model process has mapped; a uuid of 36 characters ends each.

    What other libraries keep in shared memory is not among them.
    """
    prefix = f"{folder}/"
    names = {line.partition(prefix)[2] for line in _own_maps() if prefix in line}
    return {name for name in names if _ENDS_WITH_UUID.search(name)}


def own_region_prefix(folder: Path = FOLDER) -> str | None:
    """The prefix of this model process's own region's name; None where it has no region."""
    prefixes = {name[:-36] for name in own_regions(folder)}
    return prefixes.pop() if len(prefixes) == 1 else None


def remove_orphans(prefix: str, server_pid: int, folder: Path = FOLDER) -> list[str]:
    """Remove regions whose name starts with `prefix` and that no model maps; give their names.

    The server itself keeps its side of a dead model mapped, and never opens it by name again.
    """
    oldest = time.time() - YOUNG_SECONDS
    mapped = mapped_names(folder, ignored=server_pid)
    removed = []
    for path in folder.glob(f"{prefix}*"):
        with contextlib.suppress(FileNotFoundError):
            if path.name not in mapped and path.stat().st_ctime < oldest:
                path.unlink()
                removed.append(path.name)
    return removed


def _own_maps() -> list[str]:
    return Path("/proc/self/maps").read_text().splitlines()
