"""Arguments of tritonserver that are the same for every server of the project."""

from __future__ import annotations

from pathlib import Path

from lingbot_triton.settings import Settings, threads_for
from lingbot_triton.triton.administration import ADMIN_HEADER

NVIDIA_DRIVER = Path("/dev/nvidiactl")
RESTRICTED_PROTOCOLS = "model-repository,shared-memory,trace,logging"
"""Parts of Triton's own API that clients cannot use."""

MIN_THREADS = 64


def backend_threads(settings: Settings) -> int:
    """Threads of the Python backend per model instance, which bound its calls in flight.

    Enough that a worker which stopped keeps no session from the others.
    """
    return max(MIN_THREADS, threads_for(settings.max_sessions))


def fixed_arguments(admin_key: str, reloads_workers: bool) -> list[str]:
    """Arguments that need no address; `admin_key` opens the restricted protocols."""
    restriction = f"{RESTRICTED_PROTOCOLS}:{ADMIN_HEADER}={admin_key}"
    arguments = [
        "--disable-auto-complete-config",
        f"--http-restricted-api={restriction}",
        f"--grpc-restricted-protocol={restriction}",
    ]
    if reloads_workers:
        arguments += ["--model-control-mode=explicit", "--load-model=*"]
    if not NVIDIA_DRIVER.exists():
        arguments += ["--allow-gpu-metrics=false", "--pinned-memory-pool-byte-size=0"]
    return arguments
