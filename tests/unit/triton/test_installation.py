from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lingbot_triton.triton import installation
from lingbot_triton.triton.installation import (
    Installation,
    InstallationError,
    find_installation,
    lay_out_wheel,
    perf_analyzer_environment,
)

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def _program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def _wheel(site_packages: Path, version: str = VERSION) -> Path:
    server = site_packages / "pytriton" / "tritonserver"
    for name in (
        server / "backends" / "python" / "libtriton_python.so",
        server / "backends" / "python" / "triton_python_backend_utils.py",
        server / "python_backend_stubs" / version / "triton_python_backend_stub",
        site_packages / "nvidia_pytriton.libs" / "libb64-98cb6333.so.0d",
        site_packages / "nvidia_pytriton.libs" / "libcudart-09529672.so.12.6.77",
    ):
        name.parent.mkdir(parents=True, exist_ok=True)
        name.write_text(name.name)
    return site_packages


def test_a_named_server_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = _program(tmp_path / "named" / "bin" / "tritonserver")
    other = _program(tmp_path / "other" / "tritonserver")
    monkeypatch.setenv("PATH", str(other.parent), prepend=os.pathsep)
    assert find_installation(named) == Installation(named)


def test_a_server_on_the_path_comes_before_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = _program(tmp_path / "tritonserver")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert find_installation().binary == program


def test_a_name_that_is_no_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InstallationError, match=r"is not a tritonserver that can be run"):
        find_installation(tmp_path)


def test_the_wheel_serves_where_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(installation, "CONTAINER_BINARY", Path("/nowhere/tritonserver"))
    found = find_installation()
    assert found.binary.is_file()
    assert found.environment["PATH"] == f"{Path(sys.executable).parent}:/nowhere"


def test_without_any_server_the_error_says_what_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(installation, "CONTAINER_BINARY", Path("/nowhere/tritonserver"))
    monkeypatch.setattr(installation, "find_spec", lambda name: None)
    with pytest.raises(InstallationError, match="run scripts/setup"):
        find_installation()


def test_the_layout_links_the_stub_of_this_python(tmp_path: Path) -> None:
    layout = lay_out_wheel(_wheel(tmp_path / "site"), tmp_path / "layout")
    links = {str(path.relative_to(layout)): path.read_text() for path in layout.rglob("*.*")}
    assert links == {
        "backends/python/libtriton_python.so": "libtriton_python.so",
        "backends/python/triton_python_backend_utils.py": "triton_python_backend_utils.py",
        "lib/libb64.so.0d": "libb64-98cb6333.so.0d",
        "lib/libcudart.so.12": "libcudart-09529672.so.12.6.77",
    }
    assert (layout / "backends/python/triton_python_backend_stub").is_file()


def test_laying_out_again_mends_what_points_elsewhere(tmp_path: Path) -> None:
    wheel = _wheel(tmp_path / "site")
    layout = lay_out_wheel(wheel, tmp_path / "layout")
    stub = layout / "backends/python/triton_python_backend_stub"
    stub.unlink()
    stub.symlink_to("/gone")
    kept = (layout / "lib/libb64.so.0d").lstat().st_ino
    lay_out_wheel(wheel, layout)
    assert stub.is_file()
    assert (layout / "lib/libb64.so.0d").lstat().st_ino == kept


def test_a_wheel_without_this_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InstallationError, match=rf"for Python {VERSION}, only for 2\.7"):
        lay_out_wheel(_wheel(tmp_path / "site", version="2.7"), tmp_path / "layout")


def test_perf_analyzer_runs_with_its_environment() -> None:
    program = Path(sys.executable).parent / "perf_analyzer"
    environment = {**os.environ, **perf_analyzer_environment()}
    result = subprocess.run([program, "--version"], env=environment, capture_output=True, text=True)
    assert "Perf Analyzer Version 2.51.0" in result.stdout + result.stderr
