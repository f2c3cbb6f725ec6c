"""What a played session looked like, in numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table

from lingbot_client.frames import Chunk
from lingbot_client.transport import ServerInfo


@dataclass(frozen=True)
class ChunkReport:
    """One chunk; times in milliseconds, None where the server does not give one."""

    chunk_index: int
    keys: str | None
    """Keys applied; None for poses."""
    frames: int
    first_frame_ms: float | None
    """Server time from acceptance to the first frame."""
    last_frame_ms: float | None
    condition_wait_ms: float | None
    arrived_ms: float
    """Time here from sending the control to the last frame's arrival."""

    @classmethod
    def of(cls, chunk: Chunk) -> ChunkReport:
        last = chunk.parts[-1]
        return cls(
            chunk.chunk_index,
            chunk.keys,
            len(chunk.frames),
            chunk.first_frame_ms,
            chunk.last_frame_ms,
            chunk.condition_wait_ms,
            (last.received_at - last.sent_at) * 1000,
        )


@dataclass
class Recording:
    """A session as it was played."""

    ready: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] | None = None
    chunks: list[ChunkReport] = field(default_factory=list)
    interrupted: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"


def chunk_table(recording: Recording) -> Table:
    """One row per chunk, server times counted from the acceptance of its control."""
    table = Table(title=_title(recording.ready), caption="times in milliseconds")
    table.add_column("chunk", justify="right")
    table.add_column("keys")
    for name in ("frames", "first frame", "last frame", "condition wait", "seen here"):
        table.add_column(name, justify="right")
    for chunk in recording.chunks:
        table.add_row(
            str(chunk.chunk_index),
            "poses" if chunk.keys is None else chunk.keys or ".",
            str(chunk.frames),
            *map(
                _ms,
                (
                    chunk.first_frame_ms,
                    chunk.last_frame_ms,
                    chunk.condition_wait_ms,
                    chunk.arrived_ms,
                ),
            ),
        )
    return table


def server_tables(info: ServerInfo) -> Sequence[Table]:
    """A server's models and their state, and what its orchestrator takes."""
    state = "ready" if info.ready else "live, not ready" if info.live else "not live"
    models = Table(title=f"{info.name} {info.version}: {state}")
    for name in ("model", "version", "state"):
        models.add_column(name)
    for model in info.models:
        models.add_row(model.name, model.version, "ready" if model.ready else "not ready")
    inputs = Table(title="inputs of the orchestrator")
    for name in ("input", "type", "shape"):
        inputs.add_column(name)
    for tensor in info.inputs:
        inputs.add_row(tensor.name, tensor.datatype, str(list(tensor.shape)))
    return (models, inputs) if info.inputs else (models,)


def _title(ready: dict[str, Any]) -> str:
    simulated = ", simulated" if ready.get("simulated") else ""
    return f"{ready.get('model', 'world')}, {ready.get('width')}x{ready.get('height')}{simulated}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
