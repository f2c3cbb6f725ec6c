"""What clients and the orchestrator say to each other: every tensor is written once, here.

The configurations in `model_repository/` and the tables of `docs/protocol.md` are rendered from
this and from `stage`, and the code that packs and unpacks requests names tensors through it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

KEYS = "wasdijkl"
"""Keys of a control: w a s d move, i j k l turn (i up, k down, j left, l right)."""

MAX_SESSIONS = 64
"""Upper bound of the setting `max_sessions`."""

SLOTS = 65_536
"""Sequences that one model instance can hold. A refused or vanished client holds its slot until the
idle limit. With 1,024 slots a client could exhaust them within seconds; a slot costs 0.7 KB."""


class EndReason(Enum):
    """Why a session ended: in the closing summary, the metric's label and the log line."""

    END = "end"
    FAILED = "failed"
    IDLE = "idle"
    CANCELLED = "cancelled"
    REPLACED = "replaced"
    SHUTDOWN = "shutdown"


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a model: its name, Triton data type and shape (-1 is free)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    description: str
    optional: bool = True


@dataclass(frozen=True)
class ModelSpec:
    """One model of the repository and how Triton is to schedule it."""

    name: str
    description: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    sequence_slots: int = 0
    """Sequences an instance can hold; 0 for a model without sequences."""
    idle_seconds: int = 0
    """After so long without a request Triton gives the sequence's slot away."""
    decoupled: bool = False


SECRET = "secret"
"""Parameter of every request to a worker: proof that this server's orchestrator calls."""

IMAGE = TensorSpec("image", "BYTES", (1,), "the first picture: PNG, JPEG or WebP; at START")
PROMPT = TensorSpec("prompt", "BYTES", (1,), "UTF-8 text, at most 512 tokens; at START")
OPTIONS = TensorSpec("options", "BYTES", (1,), "JSON object of session options; at START")
CHUNK_INDEX = TensorSpec("chunk_index", "INT32", (1,), "index of the chunk a control is for")
KEYS_HELD = TensorSpec("keys", "BYTES", (-1,), "keys held: w a s d i j k l; none stands still")
POSES = TensorSpec(
    "poses", "FP32", (-1, 4, 4), "camera-to-world matrices, OpenCV axes, one per latent frame (3)"
)
TOKEN = TensorSpec("token", "BYTES", (1,), "at START, then the same with every later request")

STATUS = TensorSpec("status", "BYTES", (1,), "READY, FRAMES, CLOSED or an error code")
MESSAGE = TensorSpec("message", "BYTES", (1,), "one clear sentence; empty when all is well")
CHUNK_INDEX_OUT = TensorSpec("chunk_index", "INT32", (1,), "chunk the answer is about, or -1")
FRAME_INDEX = TensorSpec("frame_index", "INT32", (1,), "session-wide index of the first frame here")
FRAMES = TensorSpec("frames", "UINT8", (-1, -1, -1, 3), "RGB frames [n, H, W, 3]; n may be 0")
INFO = TensorSpec("info", "BYTES", (1,), "JSON: geometry and limits, timings, or the summary")

PUBLIC_INPUTS = (IMAGE, PROMPT, OPTIONS, CHUNK_INDEX, KEYS_HELD, POSES, TOKEN)
PUBLIC_OUTPUTS = (STATUS, MESSAGE, CHUNK_INDEX_OUT, FRAME_INDEX, FRAMES, INFO)

ORCHESTRATOR = ModelSpec(
    "orchestrator",
    "sessions, cursors, prefetch window, order; calls the other models",
    PUBLIC_INPUTS,
    PUBLIC_OUTPUTS,
    sequence_slots=SLOTS,
    idle_seconds=900,
    decoupled=True,
)
