"""Regions are files here: which of them are orphans, and that nothing else is touched."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lingbot_triton.triton import shared_memory
from lingbot_triton.triton.shared_memory import mapped_names, remove_orphans

MAP = (
    "import mmap, sys; f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0); "
    "print(flush=True); input()"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(shared_memory, "YOUNG_SECONDS", 0.0)
    for name in ("mine-a", "mine-b", "mine-c", "other"):
        (tmp_path / name).write_bytes(bytes(4096))
    return tmp_path


@contextmanager
def _mapped_by_another(path: Path) -> Iterator[int]:
    command = [sys.executable, "-c", MAP, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.communicate(b"\n")


def test_what_no_model_maps_is_removed_though_the_server_maps_it(folder: Path) -> None:
    with (
        _mapped_by_another(folder / "mine-a") as server,
        (folder / "mine-b").open("r+b") as file,
        mmap.mmap(file.fileno(), 0),
    ):
        assert mapped_names(folder) == {"mine-a", "mine-b"}
        assert sorted(remove_orphans("mine-", server, folder)) == ["mine-a", "mine-c"]
    assert sorted(path.name for path in folder.iterdir()) == ["mine-b", "other"]


def test_a_region_this_young_may_be_about_to_be_mapped(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "YOUNG_SECONDS", 60.0)
    assert remove_orphans("mine-", os.getppid(), folder) == []
