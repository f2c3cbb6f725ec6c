"""What a client may choose when it opens a session.

The schema here is all there is of an option: `docs/protocol.md` is rendered from it.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar

from pydantic import Field, Strict, model_validator

from lingbot_triton.errors import BadRequest
from lingbot_triton.schema import Schema, shorten

MAX_AREA = 1280 * 720
"""Pixels of the largest frames."""
MIN_AREA = 16**2
MAX_KV_FRAMES = 1000
"""Latent frames of the largest KV window."""

Pixels = Annotated[float, Field(ge=1e-3, le=1e6)]
Centre = Annotated[float, Field(ge=-1e6, le=1e6)]
Side = Annotated[int, Field(ge=1, le=100_000)]
Degrees = Annotated[float, Field(ge=0, le=90)]
Intrinsics = Annotated[
    tuple[
        Annotated[Pixels, Field(title="fx")],
        Annotated[Pixels, Field(title="fy")],
        Annotated[Centre, Field(title="cx")],
        Annotated[Centre, Field(title="cy")],
    ],
    Strict(False),  # JSON has lists
]
Size = Annotated[
    tuple[Annotated[Side, Field(title="width")], Annotated[Side, Field(title="height")]],
    Strict(False),
]


class SessionOptions(Schema):
    """A session's options, as `docs/protocol.md` describes them; every one has a default."""

    ERROR: ClassVar[type[Exception]] = BadRequest
    NOUN: ClassVar[str] = "option"
    LABEL: ClassVar[str] = "option {name!r}"
    RANGE: ClassVar[str] = "is {value}; it must lie between {low} and {high}"

    seed: Annotated[
        int,
        Field(
            ge=0,
            le=2**63 - 1,
            description="of the session's random streams; the same seed gives the same world",
        ),
    ] = 42
    chunk_count: Annotated[
        int,
        Field(
            ge=1,
            le=10_000,
            description="chunks the session may have, for which its cache is allocated; "
            "without effect where `kv_window_frames` is given",
        ),
    ] = 7
    shift: Annotated[float, Field(ge=0.01, le=100, description="of the noise schedule")] = 10.0
    intrinsics: Annotated[
        Intrinsics | None,
        Field(
            description="fx, fy, cx, cy in pixels; "
            "else a focal length of the picture's width, centred"
        ),
    ] = None
    intrinsics_size: Annotated[
        Size | None,
        Field(
            description="width and height of the picture that `intrinsics` are for; "
            "else that of the session's frames"
        ),
    ] = None
    translation_scale: Annotated[
        float, Field(ge=0, le=1000, description="how far a chunk's longest step reaches")
    ] = 3.0
    move_step: Annotated[
        float,
        Field(
            ge=0,
            le=100,
            description="distance of one step of w a s d; a latent frame has four steps",
        ),
    ] = 0.05
    yaw_step_degrees: Annotated[Degrees, Field(description="angle of one step of j l")] = 2.0
    pitch_step_degrees: Annotated[Degrees, Field(description="angle of one step of i k")] = 2.0
    pitch_limit_degrees: Annotated[
        float, Field(ge=0, le=89.9, description="a step of i k beyond it is left out")
    ] = 85.0
    kv_window_frames: Annotated[
        int | None,  # its limits depend on the model's chunks: `chunk_limits`
        Field(
            description="latent frames whose keys and values are kept: the session may be endless"
        ),
    ] = None
    kv_sink_frames: Annotated[
        int,
        Field(
            ge=0,
            le=MAX_KV_FRAMES,
            description="of those, the session's first ones, which stay for good",
        ),
    ] = 0
    max_area: Annotated[
        int,
        Field(
            ge=MIN_AREA,
            le=MAX_AREA,
            description="pixels of a frame at most; the picture's aspect ratio is kept, sides are "
            "multiples of 16. The default is the server's",
        ),
    ] = 480 * 832
    decode_frames: Annotated[
        int,  # its limits depend on the model's chunks: `chunk_limits`
        Field(description="latent frames decoded and sent at a time"),
    ] = 1
    prefetch_depth: Annotated[
        Annotated[int, Field(ge=0, le=8)] | None,
        Field(
            description="conditions encoded ahead, at most the server's own depth, which is the "
            "default; 0 is for comparison"
        ),
    ] = None
    commit_inline: Annotated[
        bool, Field(description="decode only after the commit; slower, for comparison")
    ] = False
    reuse_steady_condition: Annotated[
        bool,
        Field(
            description="encode a condition that repeats only once; false is for comparison",
        ),
    ] = True
    trace: Annotated[
        bool, Field(description="put the spans of every stage into the closing summary")
    ] = False

    @property
    def endless(self) -> bool:
        return self.kv_window_frames is not None

    @property
    def last_chunk(self) -> int | None:
        """Index of the last chunk the session can have, None for an endless one."""
        return None if self.endless else self.chunk_count - 1

    def cache_latent_frames(self, chunk_latent_frames: int) -> int:
        """Latent frames whose keys and values a session of such chunks keeps."""
        return self.kv_window_frames or self.chunk_count * chunk_latent_frames

    def chunk_limits(self, chunk_latent_frames: int) -> dict[str, tuple[int, int]]:
        """Smallest and largest value of the options whose limits depend on the model's chunks."""
        return {
            "decode_frames": (1, chunk_latent_frames),
            "kv_window_frames": (self.kv_sink_frames + chunk_latent_frames, MAX_KV_FRAMES),
        }

    def check_chunk(self, chunk_latent_frames: int) -> None:
        """Raise BadRequest where the options do not go with a model of such chunks."""
        for name, (low, high) in self.chunk_limits(chunk_latent_frames).items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                words = f"{self.LABEL} {self.RANGE}"
                raise BadRequest(words.format(name=name, value=shorten(value), low=low, high=high))

    def differing(self) -> dict[str, Any]:
        """The options that are not at their defaults, as JSON takes them."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in self
            if value != type(self).model_fields[name].default
        }

    def to_json(self) -> str:
        return json.dumps(dict(self), separators=(",", ":"))

    @classmethod
    def parse(cls, text: str | bytes, defaults: SessionOptions | None = None) -> SessionOptions:
        """Read a JSON object over `defaults`; raises BadRequest for anything that does not fit."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"options are not valid JSON: {error}") from None
        if not isinstance(values, dict):
            raise BadRequest(f"options must be a JSON object, not {type(values).__name__}")
        if "kv_window_frames" in values:  # a default's sink frames belong to a default's window
            values.setdefault("kv_sink_frames", 0)
        return (defaults or cls()).replace(**values)

    @model_validator(mode="after")
    def _check_pairs(self) -> SessionOptions:
        """An option that means nothing without another one is a mistake."""
        for name, needed in (
            ("intrinsics_size", "intrinsics"),
            ("kv_sink_frames", "kv_window_frames"),
        ):
            if getattr(self, name) and getattr(self, needed) is None:
                raise ValueError(f"option {name!r} needs option {needed!r}")
        return self
