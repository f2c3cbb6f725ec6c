"""Every error a client can meet, in one tree, each with its status code.

WorldError                    (never raised itself)
├── BadRequest                BAD_REQUEST      the request is malformed; the session goes on
├── Duplicate                 DUPLICATE        this chunk index was admitted before
├── OutOfOrder                OUT_OF_ORDER     this chunk index skips the next one
├── WindowFull                WINDOW_FULL      too many controls ahead of their denoise
├── LengthLimit               LENGTH_LIMIT     the session has no chunk with this index
├── SessionLimit              SESSION_LIMIT    no room for another session
├── NoSession                 NO_SESSION       no session with this id and token
├── SessionFailed             SESSION_FAILED   ends the session
├── StageFailed               STAGE_FAILED     ends the session
│   └── StageDead                              the stage's process is gone
├── StageTimeout              STAGE_TIMEOUT    ends the session
└── ShuttingDown              SHUTTING_DOWN    the server is stopping
"""

from __future__ import annotations


class WorldError(Exception):
    """A request that cannot be served; `str(error)` is the sentence the client reads."""

    code: str = ""


class BadRequest(WorldError):
    code = "BAD_REQUEST"


class Duplicate(WorldError):
    code = "DUPLICATE"


class OutOfOrder(WorldError):
    code = "OUT_OF_ORDER"


class WindowFull(WorldError):
    code = "WINDOW_FULL"


class LengthLimit(WorldError):
    code = "LENGTH_LIMIT"


class SessionLimit(WorldError):
    code = "SESSION_LIMIT"


class NoSession(WorldError):
    code = "NO_SESSION"


class SessionFailed(WorldError):
    code = "SESSION_FAILED"


class StageFailed(WorldError):
    code = "STAGE_FAILED"


class StageDead(StageFailed):
    """A worker process of `stage` is gone, and with it the session's state there."""

    def __init__(self, stage: str, sentence: str, instance: str = "") -> None:
        super().__init__(sentence)
        self.stage = stage
        self.instance = instance
        """Triton's name of the process, such as denoise_0_1, where it is known."""
        self.others_live = False
        """Whether the stage is known to have another process that lives."""


class StageTimeout(WorldError):
    code = "STAGE_TIMEOUT"


class ShuttingDown(WorldError):
    code = "SHUTTING_DOWN"


BY_CODE: dict[str, type[WorldError]] = {kind.code: kind for kind in WorldError.__subclasses__()}
