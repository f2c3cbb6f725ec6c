"""Which sequences Triton holds open at the orchestrator, and which of them it is to let go."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lingbot_triton import protocol
from lingbot_triton.session import SessionId

KEPT_WITHOUT_SESSION = 256
"""Sequences that may stay open though their session was refused or has ended."""


class OpenSequences:
    """Triton holds a slot for every sequence until its END, whether we opened a session or not.

    Clients that are refused, or vanish, send no END. Without slots nobody could open a session,
    so the oldest sequences that have none are to be ended once there are too many of them.
    """

    def __init__(
        self, has_session: Callable[[SessionId], bool], kept: int = KEPT_WITHOUT_SESSION
    ) -> None:
        self._has_session = has_session
        self._kept = kept
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

    def take_surplus(self) -> list[SessionId]:
        """The sequences to end now; they count as ended from here on."""
        if len(self._last_request) <= self._kept:
            return []
        without = [one for one in self._last_request if not self._has_session(one)]
        surplus = without[: max(0, len(without) - self._kept)]
        for session_id in surplus:
            del self._last_request[session_id]
        return surplus
