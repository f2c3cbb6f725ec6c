"""Find a tritonserver: the one named, the one of a container, or the one of a Python wheel.

The nvidia-pytriton wheel carries NVIDIA's own server, backend and libraries, but no layout that
the server can start from. `lay_out_wheel` makes one of symbolic links, beside the environment:

    triton/backends/python/   the Python backend and the stub of this interpreter's version
    triton/lib/               libraries under the names that perf_analyzer asks for
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

CONTAINER_BINARY = Path("/opt/tritonserver/bin/tritonserver")
WHEEL_SERVER = Path("pytriton", "tritonserver")
PERF_ANALYZER_LIBRARIES = {
    "libb64.so.0d": "libb64-*.so.0d",
    "libcudart.so.12": "libcudart-*.so.12.*",
}


class InstallationError(RuntimeError):
    """Something that starting tritonserver needs is not there; the message says what to do."""


@dataclass(frozen=True)
class Installation:
    """A tritonserver that can be started: its binary, and what its layout adds to a start."""

    binary: Path
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


def find_installation(binary: Path | None = None) -> Installation:
    """The tritonserver at `binary`, else on PATH, in a container, or in this environment's wheel.

    Raises InstallationError where there is none, or where a library it needs is missing.
    """
    if binary is not None:
        if not (binary.is_file() and os.access(binary, os.X_OK)):
            raise InstallationError(f"{binary} is not a tritonserver that can be run")
        return _outside(binary)
    on_path = shutil.which("tritonserver")
    if on_path:
        return _outside(Path(on_path))
    if CONTAINER_BINARY.is_file():
        return _outside(CONTAINER_BINARY)
    return _from_wheel()


def perf_analyzer_environment() -> dict[str, str]:
    """Variables with which the perf_analyzer of tritonclient 2.51 finds its libraries."""
    wheel = _wheel()
    if wheel is None:
        return {}
    layout = lay_out_wheel(wheel, layout_directory())
    return {"LD_LIBRARY_PATH": _joined([layout / "lib"], "LD_LIBRARY_PATH")}


def _outside(binary: Path) -> Installation:
    binary = binary.resolve()
    wheel = _wheel()
    if wheel and binary == (wheel / WHEEL_SERVER / "bin" / "tritonserver").resolve():
        return _from_wheel()
    return Installation(binary)


def _from_wheel() -> Installation:
    wheel = _wheel()
    if wheel is None:
        raise InstallationError(
            "no tritonserver on PATH, in /opt/tritonserver/bin or in this Python environment; "
            "run scripts/setup, or name one with --tritonserver"
        )
    layout = lay_out_wheel(wheel, layout_directory())
    server = wheel / WHEEL_SERVER
    libraries = [*_libpython_directory(), wheel / "nvidia_pytriton.libs"]
    return Installation(
        binary=server / "bin" / "tritonserver",
        arguments=(f"--backend-directory={layout / 'backends'}",),
        environment={
            "LD_LIBRARY_PATH": _joined(libraries, "LD_LIBRARY_PATH"),
            # The stub finds this environment through the first python3 on PATH.
            "PATH": _joined([Path(sys.executable).parent], "PATH"),
        },
    )


def lay_out_wheel(site_packages: Path, directory: Path) -> Path:
    """Link the wheel's files into `directory` as the server wants them; repeating it is free."""
    server = site_packages / WHEEL_SERVER
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = server / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.is_file():
        known = ", ".join(sorted(path.name for path in stub.parent.parent.iterdir()))
        raise InstallationError(
            f"the nvidia-pytriton wheel has no backend for Python {version}, only for {known}"
        )
    backend = directory / "backends" / "python"
    for name in ("libtriton_python.so", "triton_python_backend_utils.py"):
        _link(backend / name, server / "backends" / "python" / name)
    _link(backend / stub.name, stub)
    for name, pattern in PERF_ANALYZER_LIBRARIES.items():
        for library in (site_packages / "nvidia_pytriton.libs").glob(pattern):
            _link(directory / "lib" / name, library)
    return directory


def layout_directory() -> Path:
    """Where the layout belongs: in the virtual environment, else in the user's cache."""
    if sys.prefix != sys.base_prefix:
        return Path(sys.prefix) / "triton"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    key = hashlib.sha256(f"{sys.prefix} {sys.version}".encode()).hexdigest()[:12]
    return cache / "lingbot-triton" / key


def _link(link: Path, target: Path) -> None:
    """Point `link` at `target` in one step, so that others never see it missing."""
    with contextlib.suppress(OSError):
        if link.readlink() == target:
            return
    link.parent.mkdir(parents=True, exist_ok=True)
    fresh = link.with_name(f".{link.name}.{os.getpid()}")
    fresh.symlink_to(target)
    fresh.replace(link)


def _wheel() -> Path | None:
    """The site-packages folder that holds nvidia-pytriton's server, if one does."""
    spec = find_spec("pytriton")
    for location in (spec and spec.submodule_search_locations) or ():
        if (Path(location) / "tritonserver" / "bin" / "tritonserver").is_file():
            return Path(location).parent
    return None


def _libpython_directory() -> Iterator[Path]:
    """The folder of this interpreter's shared library; nothing if the loader knows it anyway."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    name = f"libpython{version}.so.1.0"
    folder = Path(sysconfig.get_config_var("LIBDIR") or "")
    if (folder / name).is_file():
        yield folder
        return
    try:
        ctypes.CDLL(name)
    except OSError:
        raise InstallationError(
            f"{name} is missing, and tritonserver's Python backend needs it; "
            f"install it (Debian and Ubuntu: apt-get install libpython{version})"
        ) from None


def _joined(folders: list[Path], variable: str) -> str:
    """`folders`, then what the variable holds already, as one search path."""
    inherited = os.environ.get(variable, "")
    return os.pathsep.join([*map(str, folders), *([inherited] if inherited else [])])
