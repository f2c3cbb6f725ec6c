"""What the orchestrator needs of the world around it; Triton's side implements these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from lingbot_triton.stage import Operation, Stage

if TYPE_CHECKING:
    from lingbot_triton.orchestrator.requests import Response
    from lingbot_triton.orchestrator.session import Session

Clock = Callable[[], float]
"""Monotonic seconds."""

Tensors = dict[str, Any]
"""Tensors by name; the orchestrator looks into few of them, and only hands on the others."""

Parameters = Mapping[str, str | int]


class Stages(Protocol):
    """The way to the stages."""

    async def call(
        self,
        session: Session,
        stage: Stage,
        operation: Operation,
        inputs: Tensors,
        parameters: Parameters,
    ) -> Tensors:
        """Call a stage and return the operation's outputs.

        Raises StageDead where its process is gone, and StageFailed for every other failure.
        """

    async def ping(self, stage: Stage, session: Session | None = None) -> None:
        """Return if the process that holds `session` (or any) responds; raises StageDead."""


class Workers(Protocol):
    """The processes behind the stages."""

    def all_dead(self, stage: str) -> bool:
        """Whether the stage is known to have no living process at all."""

    async def reload(self, stage: str) -> None:
        """Start the stage's processes anew; raises StageFailed that says why it cannot be."""

    async def remove_orphaned_memory(self) -> None:
        """Remove the shared memory that dead processes left behind."""


class ResponseSink(Protocol):
    """The way back to the client for one request."""

    async def send(self, response: Response, *, final: bool) -> None:
        """Send one response; after the final one, nothing more is sent."""

    @property
    def finished(self) -> bool:
        """Whether the final response was sent."""

    def cancelled(self) -> bool:
        """Whether the client is gone or has cancelled the request."""
