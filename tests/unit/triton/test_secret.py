"""The secret that one server's models share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lingbot_triton.triton import secret


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv(secret.VARIABLE, raising=False)
    return tmp_path / f"lingbot-triton-{os.getuid()}"


def test_all_processes_of_a_server_agree_and_others_differ() -> None:
    own = secret.server_secret(os.getpid())
    assert secret.server_secret(os.getpid()) == own
    assert secret.server_secret(os.getppid()) != own
    assert len(own) == 64


def test_processes_that_start_at_once_agree(folder: Path) -> None:
    code = "from lingbot_triton.triton.secret import server_secret; print(server_secret().decode())"
    environment = os.environ | {"TMPDIR": str(folder.parent)}
    children = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment)
        for _ in range(6)
    ]
    assert len({child.communicate()[0] for child in children}) == 1


def test_only_the_user_can_read_it(folder: Path) -> None:
    secret.server_secret(os.getpid())
    (file,) = folder.iterdir()
    assert (folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)


def test_a_folder_that_others_can_read_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    with pytest.raises(PermissionError, match="must belong to this user alone"):
        secret.server_secret(os.getpid())


def test_files_of_dead_servers_are_removed(folder: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    secret.server_secret(child.pid)
    child.communicate(b"\n")
    secret.server_secret(os.getpid())
    assert [path.name.split("-")[0] for path in folder.iterdir()] == [str(os.getpid())]
    secret.forget_secret(os.getpid())
    secret.forget_secret(os.getpid())
    assert list(folder.iterdir()) == []


def test_a_given_secret_is_taken(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv(secret.VARIABLE, "given")
    assert secret.server_secret(os.getpid()) == b"given"
    assert not folder.exists()
