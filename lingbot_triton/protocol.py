"""Every model and every tensor of the service, written once.

The configurations in `model_repository/` are rendered from `MODELS`, `docs/protocol.md` is
generated from it, and the code that packs and unpacks requests names tensors through it.
"""

from __future__ import annotations

from dataclasses import dataclass

KEYS = "wasdijkl"
"""Keys of a control: w a s d move, i j k l turn (i up, k down, j left, l right)."""

MOST_SESSIONS = 64
"""What `max_sessions` may be at most."""

SLOTS = 65_536
"""Sequences that an instance can hold. Whoever is refused, at a worker too, or vanishes keeps a
slot until the idle limit, and while there is none left nobody can open a session: 1,024 were used
up within seconds. One costs 0.7 KB."""


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a model: its name, Triton data type and shape (-1 is free)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    text: str
    optional: bool = True


@dataclass(frozen=True)
class ModelSpec:
    """One model of the repository and how Triton is to schedule it."""

    name: str
    text: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    sequence_slots: int = 0
    """Sequences an instance can hold; 0 for a model without sequences."""
    idle_seconds: int = 0
    """After so long without a request Triton gives the sequence's slot away."""
    decoupled: bool = False
    runs_on_gpu: bool = False


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

CONTEXT = TensorSpec("context", "FP32", (-1, -1), "prompt embedding [tokens, text width]")
PICTURE = TensorSpec("picture", "UINT8", (-1, -1, 3), "decoded RGB picture [h, w, 3]; op open")
CONDITION = TensorSpec(
    "condition", "FP32", (20, -1, -1, -1), "4 mask + 16 latent channels [20, frames, h, w]"
)
STEADY = TensorSpec("steady", "BOOL", (1,), "true when every later condition equals this one")
CAMERA_POSES = TensorSpec("poses", "FP64", (-1, 4, 4), "camera-to-world, one per latent frame")
LATENT = TensorSpec("latent", "FP32", (16, -1, -1, -1), "clean latent [16, frames, h, w]")
ABOUT = TensorSpec("about", "BYTES", (1,), "JSON: what computes; answers op open")
STEP_MS = TensorSpec("step_ms", "FP32", (-1,), "milliseconds of each denoising step")
FLOWS = TensorSpec(
    "flows", "FP32", (-1, 16, -1, -1, -1), "network output of each step; with parameter record"
)

PUBLIC_INPUTS = (IMAGE, PROMPT, OPTIONS, CHUNK_INDEX, KEYS_HELD, POSES, TOKEN)
PUBLIC_OUTPUTS = (STATUS, MESSAGE, CHUNK_INDEX_OUT, FRAME_INDEX, FRAMES, INFO)

_WORKER_IDLE_SECONDS = 3600

ORCHESTRATOR = ModelSpec(
    "orchestrator",
    "sessions, cursors, prefetch window, order; calls the other models",
    PUBLIC_INPUTS,
    PUBLIC_OUTPUTS,
    sequence_slots=SLOTS,
    idle_seconds=900,
    decoupled=True,
)
PROMPT_MODEL = ModelSpec(
    "prompt",
    "text to embedding (umT5)",
    (PROMPT,),
    (CONTEXT,),
    runs_on_gpu=True,
)
CONDITION_MODEL = ModelSpec(
    "condition",
    "picture and position to condition (VAE encoder)",
    (PICTURE,),
    (CONDITION, STEADY),
    sequence_slots=SLOTS,
    idle_seconds=_WORKER_IDLE_SECONDS,
    runs_on_gpu=True,
)
DENOISE_MODEL = ModelSpec(
    "denoise",
    "condition and control to latent (causal DiT)",
    (CONTEXT, CONDITION, CAMERA_POSES),
    (LATENT, STEP_MS, FLOWS, ABOUT),
    sequence_slots=SLOTS,
    idle_seconds=_WORKER_IDLE_SECONDS,
    runs_on_gpu=True,
)
DECODE_MODEL = ModelSpec(
    "decode",
    "latent to frames (VAE decoder)",
    (LATENT,),
    (FRAMES,),
    sequence_slots=SLOTS,
    idle_seconds=_WORKER_IDLE_SECONDS,
    runs_on_gpu=True,
)
WORKERS = (PROMPT_MODEL, CONDITION_MODEL, DENOISE_MODEL, DECODE_MODEL)
MODELS = (ORCHESTRATOR, *WORKERS)


def worker(name: str) -> ModelSpec:
    """The worker model called `name`."""
    return next(spec for spec in WORKERS if spec.name == name)
