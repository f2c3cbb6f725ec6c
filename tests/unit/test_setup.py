"""scripts/setup where it cannot succeed, in a copy of what it reads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    for name in ("scripts/setup", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def _setup(repository: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [repository / "scripts" / "setup"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def _program(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_an_interpreter_that_is_too_old_is_refused(repository: Path) -> None:
    python = _program(repository / "python", "echo 3.9")
    result = _setup(repository, PYTHON=python)
    assert result.returncode == 1
    assert result.stderr == f"setup: PYTHON={python} is Python 3.9; 3.11 or 3.12 is needed\n"
    assert not (repository / ".venv").exists()


def test_an_interpreter_that_does_not_run_is_refused(repository: Path) -> None:
    result = _setup(repository, PYTHON="/nowhere/python")
    assert result.returncode == 1
    assert result.stderr == "setup: PYTHON=/nowhere/python cannot be run\n"


@pytest.mark.parametrize(
    ("program", "script", "sentence"),
    [
        ("uname", "echo Linux aarch64", "this is Linux aarch64"),
        ("getconf", "echo glibc 2.31", "glibc is 2.31; NVIDIA's tritonserver wheel needs 2.35"),
        ("getconf", "exit 1", "glibc is not there"),
    ],
)
def test_a_machine_the_server_cannot_run_on_is_refused(
    repository: Path, program: str, script: str, sentence: str
) -> None:
    _program(repository / program, script)
    result = _setup(repository, PATH=f"{repository}:{os.environ['PATH']}")
    assert result.returncode == 1
    assert sentence in result.stderr


def test_a_failed_installation_shows_pips_words_and_does_not_count(repository: Path) -> None:
    interpreter: str = sys._base_executable  # type: ignore[attr-defined]
    result = _setup(repository, PIP_NO_INDEX="1", PIP_FIND_LINKS="", PYTHON=interpreter)
    assert result.returncode == 1
    assert "No matching distribution found for hatchling" in result.stderr
    assert result.stderr.endswith("all of pip's words are in .venv/setup.log\n")
    assert (repository / ".venv" / "bin" / "python").exists()
    assert not (repository / ".venv" / "setup.stamp").exists()


def test_an_environment_of_another_version_is_refused(repository: Path) -> None:
    (repository / ".venv" / "bin").mkdir(parents=True)
    _program(repository / ".venv" / "bin" / "python", "echo 3.8")
    result = _setup(repository)
    assert result.returncode == 1
    assert "setup: .venv has Python 3.8; remove .venv, then run this again" in result.stderr
