"""The table of live sessions, and of the errors of those that failed."""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from lingbot_triton.errors import NoSession, SessionFailed, SessionLimit, WorldError
from lingbot_triton.orchestrator.requests import SessionId
from lingbot_triton.orchestrator.session import Session, no_session


@dataclass(frozen=True)
class _Failure:
    """What is kept of a failed session: its error itself refers to pictures and tensors."""

    token: bytes
    message: str


class SessionTable:
    """The live sessions, never more than `limit`; a session counts until it is fully released."""

    REMEMBERED_FAILURES = 256

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.live: set[Session] = set()
        self._by_id: dict[SessionId, Session] = {}
        self._failures: dict[SessionId, _Failure] = {}

    def __len__(self) -> int:
        return len(self.live)

    def find(self, session_id: SessionId) -> Session | None:
        return self._by_id.get(session_id)

    def get(self, session_id: SessionId, token: bytes) -> Session:
        """The session that a request is for; raises NoSession or SessionFailed."""
        session = self._by_id.get(session_id)
        if session is None:
            raise self._why_missing(session_id, token)
        session.authorize(token)
        if session.end.failure is not None:
            raise SessionFailed(f"the session has failed: {session.end.failure}")
        if session.end.closing or session.end.reason is not None:
            raise NoSession(f"session {session_id!r} is closing")
        return session

    def _why_missing(self, session_id: SessionId, token: bytes) -> WorldError:
        failure = self._failures.get(session_id)
        if failure is None or not hmac.compare_digest(failure.token, token):
            return no_session(session_id)
        return SessionFailed(f"the session has failed: {failure.message}")

    def add(self, session: Session) -> Session | None:
        """Enter `session`, taking its id over from a live one, which is returned.

        Raises SessionLimit when the table is full; a session whose id is taken over makes room.
        """
        previous = self._by_id.get(session.id)
        replaced = previous is not None and previous in self.live
        if len(self.live) - replaced >= self.limit:
            raise SessionLimit(f"{len(self.live)} sessions are open, at most {self.limit} may be")
        self._failures.pop(session.id, None)
        self._by_id[session.id] = session
        self.live.add(session)
        return previous

    def remove(self, session: Session) -> None:
        """A session is fully released: it makes room for another one."""
        self.forget(session)
        self.live.discard(session)

    def forget(self, session: Session) -> None:
        """Make a session's id available again; a failed one is remembered for its error."""
        if self._by_id.get(session.id) is session:
            del self._by_id[session.id]
            if session.end.failure is not None:
                message = str(session.end.failure)
                self._failures[session.id] = _Failure(session.token, message)
                while len(self._failures) > self.REMEMBERED_FAILURES:
                    del self._failures[next(iter(self._failures))]
