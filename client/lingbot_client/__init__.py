"""A client for LingBot-World-Fast on Triton: a picture, a prompt and a camera make a world."""

from lingbot_client.client import WorldClient
from lingbot_client.errors import (
    BadRequest,
    Cancelled,
    ConnectionFailed,
    Disconnected,
    Duplicate,
    LengthLimit,
    NoSession,
    OutOfOrder,
    PictureError,
    ProtocolError,
    ServerUnavailable,
    SessionFailed,
    SessionLimit,
    SessionOver,
    ShuttingDown,
    StageFailed,
    StageTimeout,
    StatusError,
    TritonError,
    WindowFull,
    WorldError,
)
from lingbot_client.frames import Chunk, FramePart
from lingbot_client.protocol import Response
from lingbot_client.session import WorldSession
from lingbot_client.sync import SyncWorldClient, SyncWorldSession
from lingbot_client.triton import TLS
from lingbot_client.video import VideoWriter, contact_sheet

__all__ = [
    "TLS",
    "BadRequest",
    "Cancelled",
    "Chunk",
    "ConnectionFailed",
    "Disconnected",
    "Duplicate",
    "FramePart",
    "LengthLimit",
    "NoSession",
    "OutOfOrder",
    "PictureError",
    "ProtocolError",
    "Response",
    "ServerUnavailable",
    "SessionFailed",
    "SessionLimit",
    "SessionOver",
    "ShuttingDown",
    "StageFailed",
    "StageTimeout",
    "StatusError",
    "SyncWorldClient",
    "SyncWorldSession",
    "TritonError",
    "VideoWriter",
    "WindowFull",
    "WorldClient",
    "WorldError",
    "WorldSession",
    "contact_sheet",
]
