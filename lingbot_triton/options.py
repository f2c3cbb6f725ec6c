"""What a client may choose when it opens a session, and the geometry that follows from it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, get_args, get_type_hints

from lingbot_triton.errors import BadRequest

MAX_AREA = 1280 * 720
"""Pixels of the largest frames."""


@dataclass(frozen=True)
class SessionOptions:
    """A session's options, as `docs/protocol.md` describes them; every one has a default."""

    seed: int = 42
    chunk_count: int = 7
    shift: float = 10.0
    intrinsics: tuple[float, float, float, float] | None = None
    intrinsics_size: tuple[int, int] | None = None
    translation_scale: float = 3.0
    move_step: float = 0.05
    yaw_step_degrees: float = 2.0
    pitch_step_degrees: float = 2.0
    pitch_limit_degrees: float = 85.0
    kv_window_frames: int | None = None
    kv_sink_frames: int = 0
    max_area: int = 480 * 832
    decode_frames: int = 1
    """Latent frames decoded, and sent, at a time."""
    prefetch_depth: int | None = None
    """Conditions encoded ahead; None takes the server's own depth, which is also the most."""
    commit_inline: bool = False
    """Whether decoding waits for the commit: slower, for comparison only."""
    reuse_steady_condition: bool = True
    """Whether a condition that repeats is encoded only once; for comparison only."""
    trace: bool = False
    """Whether the closing summary carries the spans of every stage."""

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

    def check_chunk(self, chunk_latent_frames: int) -> None:
        """Raise BadRequest where the options do not go with a model of such chunks."""
        _between("decode_frames", self.decode_frames, 1, chunk_latent_frames)
        if self.kv_window_frames is not None:
            least = self.kv_sink_frames + chunk_latent_frames
            _between("kv_window_frames", self.kv_window_frames, least, 1000)

    def differing(self) -> dict[str, Any]:
        """The options that are not at their defaults, as JSON takes them."""
        default = SessionOptions()
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if value != getattr(default, name)
        }

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def parse(cls, text: str | bytes, defaults: SessionOptions | None = None) -> SessionOptions:
        """Read a JSON object over `defaults`; raises BadRequest for anything that does not fit."""
        try:
            given = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"options are not valid JSON: {error}") from None
        if not isinstance(given, dict):
            raise BadRequest(f"options must be a JSON object, not {type(given).__name__}")
        kinds = get_type_hints(cls)
        unknown = sorted(set(given) - set(kinds))
        if unknown:
            known = ", ".join(field.name for field in fields(cls))
            raise BadRequest(f"unknown option {_short(unknown[0])}; known options: {known}")
        values = {name: _convert(name, value, kinds[name]) for name, value in given.items()}
        if "kv_window_frames" in values:  # a default's sink frames belong to a default's window
            values.setdefault("kv_sink_frames", 0)
        options = replace(defaults or cls(), **values)
        options._check()
        return options

    def _check(self) -> None:
        _between("seed", self.seed, 0, 2**63 - 1)
        _between("chunk_count", self.chunk_count, 1, 10_000)
        _between("shift", self.shift, 0.01, 100)
        _between("translation_scale", self.translation_scale, 0, 1000)
        _between("move_step", self.move_step, 0, 100)
        _between("yaw_step_degrees", self.yaw_step_degrees, 0, 90)
        _between("pitch_step_degrees", self.pitch_step_degrees, 0, 90)
        _between("pitch_limit_degrees", self.pitch_limit_degrees, 0, 89.9)
        _between("max_area", self.max_area, 16**2, MAX_AREA)
        if self.prefetch_depth is not None:
            _between("prefetch_depth", self.prefetch_depth, 0, 8)
        if self.intrinsics is not None:
            _between("intrinsics fx", self.intrinsics[0], 1e-3, 1e6)
            _between("intrinsics fy", self.intrinsics[1], 1e-3, 1e6)
            _between("intrinsics cx", self.intrinsics[2], -1e6, 1e6)
            _between("intrinsics cy", self.intrinsics[3], -1e6, 1e6)
        if self.intrinsics_size is not None:
            if self.intrinsics is None:
                raise BadRequest("option 'intrinsics_size' needs option 'intrinsics'")
            _between("intrinsics_size width", self.intrinsics_size[0], 1, 100_000)
            _between("intrinsics_size height", self.intrinsics_size[1], 1, 100_000)
        if self.kv_window_frames is None:
            if self.kv_sink_frames:
                raise BadRequest("option 'kv_sink_frames' needs option 'kv_window_frames'")
            return
        _between("kv_sink_frames", self.kv_sink_frames, 0, 1000)


def _between(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise BadRequest(
            f"option {name!r} is {_short(value)}; it must lie between {low} and {high}"
        )


def _convert(name: str, value: Any, kind: Any) -> Any:
    """`value` as the field's type, without guessing: a float takes an int, nothing else mixes."""
    alternatives = get_args(kind)
    if type(None) in alternatives:
        if value is None:
            return None
        kind = next(alternative for alternative in alternatives if alternative is not type(None))
        alternatives = get_args(kind)
    if alternatives:
        if not isinstance(value, list) or len(value) != len(alternatives):
            raise BadRequest(f"option {name!r} must be a list of {len(alternatives)} numbers")
        return tuple(_convert(name, item, alternatives[0]) for item in value)
    plain_int = isinstance(value, int) and not isinstance(value, bool)
    if kind is float and (plain_int or isinstance(value, float)):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise BadRequest(f"option {name!r} must be a finite number")
        return number
    if kind is int and plain_int:
        return value
    if kind is bool and isinstance(value, bool):
        return value
    raise BadRequest(f"option {name!r} must be of type {kind.__name__}, not {_short(value)}")


def _short(value: Any) -> str:
    """A client's own value, as much of it as an answer may repeat."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
