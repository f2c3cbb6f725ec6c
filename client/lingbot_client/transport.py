"""The seam between the client and what carries its requests; `triton.py` is the real one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from lingbot_client.protocol import Tensors


@dataclass(frozen=True)
class Request:
    """One request of a sequence."""

    id: str
    sequence_id: int | str
    start: bool
    end: bool
    inputs: Tensors


@dataclass(frozen=True)
class RawResponse:
    """One response; `final` says that it is the last one to this request."""

    request_id: str
    """Empty where Triton does not say: most of its own errors name no request."""
    outputs: Tensors = field(default_factory=dict)
    final: bool = False
    error: str | None = None
    """Triton's own error message."""


@dataclass(frozen=True)
class Tensor:
    """An input or output that a model declares."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Model:
    """A model that the server has loaded."""

    name: str
    version: str
    ready: bool


@dataclass(frozen=True)
class ServerInfo:
    """What a server says about itself."""

    live: bool
    ready: bool
    name: str
    version: str
    models: tuple[Model, ...]
    inputs: tuple[Tensor, ...]
    """Inputs of the orchestrator; empty while it is not loaded."""
    stages: tuple[str, ...] = ()
    """Models that the orchestrator calls, by its configuration; empty while it is not loaded."""


class Stream(Protocol):
    """A two-way stream of requests and responses."""

    def send(self, request: Request) -> None:
        """Hand a request over without waiting; what fails shows in `receive`."""

    async def receive(self) -> RawResponse:
        """Wait for the next response; raises ConnectionFailed when there can be none."""

    def finish(self) -> None:
        """Send no more requests; the server ends the stream after its last response."""

    def cancel(self) -> None:
        """Give the stream up, whether or not responses are missing."""


class Transport(Protocol):
    """A connection to one server."""

    def open_stream(self) -> Stream:
        """Open a stream; a server that does not answer shows in the stream's `receive`."""

    async def describe(self) -> ServerInfo:
        """Ask the server about itself; raises ConnectionFailed."""

    async def close(self) -> None:
        """Close the connection and every stream on it."""
