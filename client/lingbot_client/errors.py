"""Every error the client raises, in one tree.

    WorldError                        (never raised itself)
    ├── StatusError                   the server answered with an error code
    │   ├── BadRequest                BAD_REQUEST      the request is malformed
    │   ├── Duplicate                 DUPLICATE        this chunk index was admitted before
    │   ├── OutOfOrder                OUT_OF_ORDER     this chunk index skips the next one
    │   ├── WindowFull                WINDOW_FULL      too many controls ahead of their chunks
    │   ├── LengthLimit               LENGTH_LIMIT     the session has no chunk with this index
    │   ├── SessionLimit              SESSION_LIMIT    no room for another session
    │   ├── NoSession               * NO_SESSION       no session with this id and token
    │   │   └── SequenceEnded       * NO_SESSION       its sequence has to be started again
    │   ├── SessionFailed           * SESSION_FAILED   the session broke
    │   ├── StageFailed             * STAGE_FAILED     a stage of the model broke
    │   ├── StageTimeout            * STAGE_TIMEOUT    a stage of the model took too long
    │   └── ShuttingDown              SHUTTING_DOWN    the server is stopping
    ├── ConnectionFailed            * the connection, not the request
    │   ├── ServerUnavailable         no server answers at this address
    │   └── Disconnected              the connection was lost, or closed by this side
    ├── TritonError                   Triton refused the request before the model saw it
    ├── Cancelled                     the request was dropped before its last response
    ├── ProtocolError               * the server does not speak this protocol
    ├── SessionOver                   this session was finished here: no control, no chunk follows
    └── PictureError                  this is not a picture that can be sent

The errors marked * end a session. After any other one it goes on as if the request had never
been made.
"""

from __future__ import annotations


class WorldError(Exception):
    """Base of all; `str(error)` is one sentence for people to read."""

    ends_session: bool = False


class StatusError(WorldError):
    """The server answered with an error code; the text is the server's own sentence."""

    code: str = ""


class BadRequest(StatusError):
    code = "BAD_REQUEST"


class Duplicate(StatusError):
    code = "DUPLICATE"


class OutOfOrder(StatusError):
    code = "OUT_OF_ORDER"


class WindowFull(StatusError):
    code = "WINDOW_FULL"


class LengthLimit(StatusError):
    code = "LENGTH_LIMIT"


class SessionLimit(StatusError):
    code = "SESSION_LIMIT"


class NoSession(StatusError):
    code = "NO_SESSION"
    ends_session = True


class SequenceEnded(NoSession):
    """Triton has ended the session's sequence, or it never began; it wants START first."""


class SessionFailed(StatusError):
    code = "SESSION_FAILED"
    ends_session = True


class StageFailed(StatusError):
    code = "STAGE_FAILED"
    ends_session = True


class StageTimeout(StatusError):
    code = "STAGE_TIMEOUT"
    ends_session = True


class ShuttingDown(StatusError):
    code = "SHUTTING_DOWN"


class ConnectionFailed(WorldError):
    """The connection to the server failed, whatever the request."""

    ends_session = True


class ServerUnavailable(ConnectionFailed):
    """No server answers at this address."""


class Disconnected(ConnectionFailed):
    """The connection was lost, or closed by this side, before the last response."""


class TritonError(WorldError):
    """Triton refused the request before the model saw it."""


class Cancelled(WorldError):
    """The server dropped the request: it ended without a response, or before the last one."""


class ProtocolError(WorldError):
    """The server sent something that this client does not understand."""

    ends_session = True


class SessionOver(WorldError):
    """The session was finished or closed here: no control can follow, or no chunk."""


class PictureError(WorldError):
    """Something that is missing, or not a picture."""


BY_CODE: dict[str, type[StatusError]] = {kind.code: kind for kind in StatusError.__subclasses__()}


def from_status(status: str, message: str) -> WorldError:
    """The exception for a response's status; an unknown code is a ProtocolError."""
    kind = BY_CODE.get(status)
    if kind is None:
        return ProtocolError(f"the server answered with unknown status {status!r}: {message}")
    return kind(message or status)


def from_triton(message: str) -> WorldError:
    """The exception for an error that Triton itself put into the stream."""
    if "must specify the START flag" in message:
        return SequenceEnded(f"the server has no such session: {message}")
    return TritonError(message)
