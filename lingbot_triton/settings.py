"""The service's settings, read from the environment and from model configurations.

The schema here is all there is of a setting: the table in `docs/operations.md` is rendered from it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, NonNegativeInt

from lingbot_triton.options import MAX_AREA, MIN_AREA, SessionOptions
from lingbot_triton.presets import find_preset
from lingbot_triton.protocol import MAX_SESSIONS, ORCHESTRATOR
from lingbot_triton.schema import KINDS, OneOf, Schema
from lingbot_triton.stage import SESSION_STAGES

EMBEDDED_CHECKPOINT = Path(__file__).parent / "data" / "tiny-world"
EMBEDDED_AREA = 64 * 96
DEFAULT_AREA = 480 * 832
PREFIX = "LINGBOT_"
OTHER_THREADS = 14
"""Threads of Triton for everything that is not a call to a stage with sessions: 2 for
prompts, 4 for pings, 2 for the end of sequences, 6 for responses."""

Positive = Annotated[int, Field(ge=1)]
_DTYPES = ("float32", "bfloat16", "float16")
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


class SettingsError(ValueError):
    """A setting that cannot be used; the message names the setting and what it accepts."""


def _known_preset(name: str) -> str:
    return find_preset(name).name


def _usable_area(area: int) -> int:
    if area and not MIN_AREA <= area <= MAX_AREA:
        raise ValueError(f"max_area is {area}; it must be 0, or {MIN_AREA} to {MAX_AREA}")
    return area


class Settings(Schema):
    """Each field is the variable LINGBOT_<FIELD>, or the parameter <field> of a model config."""

    ERROR: ClassVar[type[Exception]] = SettingsError
    NOUN: ClassVar[str] = "setting"

    checkpoint: Annotated[str, Field(description="folder of weights")] = str(EMBEDDED_CHECKPOINT)
    companions: Annotated[
        str,
        Field(
            description="folder of VAE, text encoder and tokenizer, where the checkpoint is the "
            "transformer alone"
        ),
    ] = ""
    preset: Annotated[
        str,
        AfterValidator(_known_preset),
        Field(
            description="denoising steps, and the defaults of `shift` and of the KV window: "
            "[Presets](#presets)"
        ),
    ] = "fast"
    device: Annotated[
        str,
        Field(
            description="where an instance computes: `cpu`, `cuda:0`, …; `auto` is the first GPU, "
            "else the CPU"
        ),
    ] = "auto"
    dtype: Annotated[
        str,
        OneOf(*_DTYPES),
        Field(
            description="weights and activations of transformer and text encoder; `bfloat16` for "
            "the real checkpoint"
        ),
    ] = "float32"
    vae_dtype: Annotated[
        str,
        OneOf(*_DTYPES),
        Field(description="the same for the VAE; the official code has it in `float32`"),
    ] = "float32"
    attention: Annotated[
        str,
        OneOf("auto", "sdpa", "sage"),
        Field(
            description="`sdpa` is torch's; `sage` is SageAttention, faster and not the same "
            "numbers; `auto` is `sage` where that can run"
        ),
    ] = "sdpa"
    compile: Annotated[
        bool,
        Field(
            description="compile what lies between matrix products, before the model reports ready"
        ),
    ] = False
    threads: Annotated[
        NonNegativeInt,
        Field(
            description="compute threads of each worker on a CPU; 0 is one for the tiny "
            "checkpoint, else torch's default"
        ),
    ] = 0
    max_area: Annotated[
        int,
        AfterValidator(_usable_area),
        Field(
            description="default area of a frame in pixels; 0 is 480·832, or 64·96 for the tiny "
            "checkpoint"
        ),
    ] = 0
    max_sessions: Annotated[int, Field(ge=1, le=MAX_SESSIONS, description="sessions at a time")] = 8
    prefetch_depth: Annotated[
        int, Field(ge=0, le=8, description="conditions of a session encoded ahead")
    ] = 2
    control_window: Annotated[
        Positive, Field(description="controls of a session that may wait for their denoise")
    ] = 2
    triton_threads: Annotated[
        int,  # bounds the orchestrator's calls under way: with one more than that it stops for good
        Field(
            ge=OTHER_THREADS + len(SESSION_STAGES),
            description="Triton's `thread-pool-size`; `scripts/serve` sets both",
        ),
    ] = 32
    stage_timeout_seconds: Annotated[
        float, Field(gt=0, lt=3600, description="for one call to a stage")
    ] = 120.0
    session_idle_seconds: Annotated[
        float,  # a session that waited longer would lose its sequence in Triton first
        Field(
            gt=0,
            lt=ORCHESTRATOR.idle_seconds,
            description="without a request a session is ended",
        ),
    ] = 300.0
    drain_seconds: Annotated[
        float, Field(ge=0, description="that running chunks have to finish when the server stops")
    ] = 2.0
    max_picture_bytes: Annotated[Positive, Field(description="of a picture's file")] = 16 * 2**20
    max_picture_pixels: Annotated[Positive, Field(description="of a picture")] = 40_000_000
    max_prompt_bytes: Annotated[Positive, Field(description="of a prompt")] = 16 * 2**10
    max_options_bytes: Annotated[Positive, Field(description="of a session's options")] = 16 * 2**10
    condition_cache_bytes: Annotated[
        NonNegativeInt,
        Field(
            description="conditions that sessions with the same picture share, of each `condition` "
            "instance; 0 for none"
        ),
    ] = 256 * 2**20
    kv_budget_bytes: Annotated[
        NonNegativeInt,
        Field(
            description="memory of the sessions of one `denoise` process; 0 measures it, see "
            "[Limits](#limits)"
        ),
    ] = 0
    simulated: Annotated[
        str, Field(description="name of a cost profile: stages only take time")
    ] = ""
    simulated_scale: Annotated[float, Field(ge=0, description="factor on its times")] = 1.0

    @property
    def embedded(self) -> bool:
        """Whether the weights are the ones that come with the package."""
        return Path(self.checkpoint) == EMBEDDED_CHECKPOINT

    @property
    def calls_per_stage(self) -> int:
        """Concurrent calls to one stage.

        A worker that stopped answering occupies one for each of its sessions; with more calls than
        sessions the stage's other workers stay reachable.
        """
        affordable = (self.triton_threads - OTHER_THREADS) // len(SESSION_STAGES)
        return min(self.max_sessions + 2, affordable)

    @property
    def session_defaults(self) -> SessionOptions:
        """A session's options where its client leaves them out."""
        return find_preset(self.preset).options(self.default_area)

    @property
    def default_area(self) -> int:
        if self.max_area:
            return self.max_area
        return EMBEDDED_AREA if self.embedded and not self.simulated else DEFAULT_AREA

    @classmethod
    def load(
        cls,
        parameters: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Settings:
        """Defaults, then a model config's parameters, then LINGBOT_* variables.

        Raises SettingsError for a value of the wrong type or out of range. Unknown LINGBOT_*
        variables are left alone: other tools may own them.
        """
        environ = os.environ if environ is None else environ
        texts = {**(parameters or {})}
        for name in cls.model_fields:
            if (variable := variable_of(name)) in environ:
                texts[name] = environ[variable]
        kinds = {name: schema["type"] for name, schema in cls.properties().items()}
        return cls(
            **{name: _parse(name, texts[name], kinds[name]) for name in kinds if name in texts}
        )


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.upper()


def threads_for(sessions: int) -> int:
    """Triton's thread-pool-size with which no session ever waits for a thread."""
    return OTHER_THREADS + len(SESSION_STAGES) * (sessions + 2)


def _parse(name: str, text: str, kind: str) -> Any:
    """A setting's text as a value of its JSON type."""
    try:
        match kind:
            case "boolean":
                return _BOOLEANS[text.lower()]
            case "integer":
                return int(text)
            case "number":
                return float(text)
            case _:
                return text
    except KeyError:
        raise SettingsError(f"{name} is {text!r}; it must be true or false") from None
    except ValueError:
        raise SettingsError(f"{name} is {text!r}; it must be of type {KINDS[kind]}") from None
