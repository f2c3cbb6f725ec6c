"""Which sequences Triton holds open at the orchestrator: it waits for their END when it stops."""

from __future__ import annotations

from collections.abc import Iterator

from lingbot_triton import protocol
from lingbot_triton.orchestrator.session import SessionId


class OpenSequences:
    """Triton holds a sequence until its END or its idle limit, whether a session came of it or not.

    Clients that are refused, or vanish, send no END, so there are many more of these than sessions.
    """

    def __init__(self) -> None:
        self._last_request: dict[SessionId, float] = {}  # the longest silent one comes first

    def __iter__(self) -> Iterator[SessionId]:
        return iter(self._last_request)

    def note(self, session_id: SessionId, ends: bool, now: float) -> None:
        """A request of the sequence has come in, with or without END."""
        self._last_request.pop(session_id, None)
        if not ends:
            self._last_request[session_id] = now
        reaped = now - protocol.ORCHESTRATOR.idle_seconds
        while self._last_request and next(iter(self._last_request.values())) < reaped:
            del self._last_request[next(iter(self._last_request))]
