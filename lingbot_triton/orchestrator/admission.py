"""Which session a request is for, and whether it may be carried out: decided without waiting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lingbot_triton.errors import BadRequest
from lingbot_triton.options import SessionOptions
from lingbot_triton.orchestrator.cursors import ConditionWindow, ControlCursor
from lingbot_triton.orchestrator.interfaces import Clock
from lingbot_triton.orchestrator.requests import Request, Start
from lingbot_triton.orchestrator.session import Session
from lingbot_triton.orchestrator.table import SessionTable
from lingbot_triton.settings import Settings


@dataclass(frozen=True)
class Admitted:
    """A request's session, and, where it is a new one, what to open it with."""

    session: Session
    start: Start | None = None
    replaced: Session | None = None
    """The session that had the id before, and has to end first."""


class Admission:
    """Admits requests in the order in which they come; what it refuses leaves no trace."""

    def __init__(
        self,
        settings: Settings,
        table: SessionTable,
        chunk_latent_frames: int,
        clock: Clock,
        on_failure: Callable[[Session], None],
        check_stages: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._table = table
        self._chunk_latent_frames = chunk_latent_frames
        self._clock = clock
        self._on_failure = on_failure
        self._check_stages = check_stages

    def admit(self, request: Request) -> Admitted:
        """Take the request's event, or its session, into the books; raises WorldError."""
        if request.starts and not self._resumes(request):
            admitted = self._admit_start(request)
        else:
            admitted = Admitted(self._admit_next(request))
        admitted.session.last_activity = self._clock()
        admitted.session.end.closing = request.end
        return admitted

    def _resumes(self, request: Request) -> bool:
        """Whether a START goes on with a session instead of opening one.

        Triton forgets a sequence at any END, an intruder's too, and then takes nothing more without
        START. So a session's owner may say START again, with the token and nothing to open.
        """
        opens = request.start is not None or request.error is not None
        live = self._table.find(request.session_id) is not None
        return not opens and (live or request.end or request.event is not None)

    def _admit_next(self, request: Request) -> Session:
        session = self._table.get(request.session_id, request.token)
        if request.error is not None:
            raise request.error
        if request.event is not None:
            request.event.admit(session)
        elif not request.end:
            raise BadRequest("a request needs a control (chunk_index and keys or poses) or END")
        return session

    def _admit_start(self, request: Request) -> Admitted:
        live = self._table.find(request.session_id)
        if live is not None:
            live.authorize(request.token)
        if request.error is not None:
            raise request.error
        if request.start is None:
            raise BadRequest("START needs an image and a prompt")
        self._check_stages()
        session = self._new_session(request, request.start.options)
        if request.event is not None:
            request.event.admit(session)
        return Admitted(session, request.start, self._table.add(session))

    def _new_session(self, request: Request, options: SessionOptions) -> Session:
        depth = self._settings.prefetch_depth
        if options.prefetch_depth is not None:
            depth = min(depth, options.prefetch_depth)
        return Session(
            id=request.session_id,
            token=request.token,
            options=options,
            chunk_latent_frames=self._chunk_latent_frames,
            controls=ControlCursor(self._settings.control_window, options.last_chunk),
            conditions=ConditionWindow(depth, options.last_chunk),
            opened_at=self._clock(),
            on_failure=self._on_failure,
        )
