"""The service's settings: one frozen dataclass, read from the environment and model configs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import get_type_hints

from lingbot_triton.options import SessionOptions
from lingbot_triton.presets import PRESETS, find_preset
from lingbot_triton.protocol import MAX_SESSIONS, ORCHESTRATOR

EMBEDDED_CHECKPOINT = Path(__file__).parent / "data" / "tiny-world"
EMBEDDED_AREA = 64 * 96
PREFIX = "LINGBOT_"
OTHER_THREADS = 14
"""Threads of Triton for whatever is not a call to condition, denoise or decode: 2 for prompts, 4
for pings, 2 for the end of sequences, 6 for answers."""


_DTYPES = ("float32", "bfloat16", "float16")
CHOICES = {
    "dtype": _DTYPES,
    "vae_dtype": _DTYPES,
    "attention": ("auto", "sdpa", "sage"),
    "preset": tuple(PRESETS),
}
"""Settings that are one of a few words."""
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


class SettingsError(ValueError):
    """A setting that cannot be used; the message names the setting and what it accepts."""


@dataclass(frozen=True)
class Settings:
    """Each field is the variable LINGBOT_<FIELD>, or the parameter <field> of a model config."""

    checkpoint: str = str(EMBEDDED_CHECKPOINT)
    companions: str = ""
    """Folder of the VAE, text encoder and tokenizer, where the checkpoint is the DiT alone."""
    device: str = "auto"
    """Where an instance computes: cpu, cuda:0 and so on; auto is the first GPU, else the CPU."""
    dtype: str = "float32"
    """Weights and activations of the transformer: float32, bfloat16 or float16."""
    vae_dtype: str = "float32"
    attention: str = "sdpa"
    """sdpa is torch's; sage is the package sageattention, faster and not the same numbers; auto is
    sage where that can run."""
    compile: bool = False
    """Whether what lies between matrix products is compiled, before the model reports ready."""
    preset: str = "fast"
    """Denoising steps and the defaults of shift and window; see `presets`."""
    threads: int = 0
    """Compute threads of each worker process; 0 leaves torch's default."""
    max_area: int = 0
    """Default frame area in pixels; 0 means 480·832, or 64·96 for the embedded checkpoint."""
    max_sessions: int = 8
    prefetch_depth: int = 2
    control_window: int = 2
    triton_threads: int = 32
    """What Triton's thread-pool-size is: it bounds the orchestrator's calls and answers under way,
    and one more than that stops it for good."""
    stage_timeout_seconds: float = 120.0
    session_idle_seconds: float = 300.0
    drain_seconds: float = 2.0
    """What running chunks are given to finish when the server is asked to end every session."""
    max_picture_bytes: int = 16 * 2**20
    max_picture_pixels: int = 40_000_000
    max_prompt_bytes: int = 16 * 2**10
    max_options_bytes: int = 16 * 2**10
    condition_cache_bytes: int = 256 * 2**20
    """Conditions that sessions with the same picture share, per condition worker; 0 for none."""
    kv_budget_bytes: int = 0
    """What the sessions of one denoise process may take of its device's memory, keys and values
    above all. 0 measures it at the start: nine tenths of what the weights leave of a GPU's memory,
    or half of the main memory available."""
    simulated: str = ""
    """Name of a cost profile; the stages then only take time."""
    simulated_scale: float = 1.0

    @property
    def embedded(self) -> bool:
        """Whether the weights are the ones that come with the package."""
        return Path(self.checkpoint) == EMBEDDED_CHECKPOINT

    @property
    def calls_per_stage(self) -> int:
        """Calls that one stage is given at a time.

        A worker that stopped keeps one for each of its sessions; with more calls than sessions it
        keeps nobody from the stage's other workers.
        """
        affordable = (self.triton_threads - OTHER_THREADS) // 3
        return min(self.max_sessions + 2, affordable)

    @property
    def session_defaults(self) -> SessionOptions:
        """A session's options where its client leaves them out."""
        return find_preset(self.preset).options(self.default_area)

    @property
    def default_area(self) -> int:
        if self.max_area:
            return self.max_area
        return EMBEDDED_AREA if self.embedded and not self.simulated else 480 * 832

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
        given: dict[str, str] = dict(parameters or {})
        for field in fields(cls):
            variable = PREFIX + field.name.upper()
            if variable in environ:
                given[field.name] = environ[variable]
        kinds = get_type_hints(cls)
        known = [name for name in given if name in kinds]
        values = {name: _parse(name, given[name], kinds[name]) for name in known}
        settings = replace(cls(), **values)  # type: ignore[arg-type]
        settings._check()
        return settings

    def _check(self) -> None:
        if not 1 <= self.max_sessions <= MAX_SESSIONS:
            raise SettingsError(
                f"max_sessions is {self.max_sessions}; it must be 1 to {MAX_SESSIONS}"
            )
        if not 0 <= self.prefetch_depth <= 8:
            raise SettingsError(f"prefetch_depth is {self.prefetch_depth}; it must be 0 to 8")
        for name, least in (("control_window", 1), ("triton_threads", OTHER_THREADS + 3)):
            if getattr(self, name) < least:
                raise SettingsError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise SettingsError(
                    f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(known)}"
                )
        # A session that waits longer would lose its sequence in Triton first.
        bounds = {"stage_timeout_seconds": 3600, "session_idle_seconds": ORCHESTRATOR.idle_seconds}
        for name, most in bounds.items():
            if not 0 < getattr(self, name) < most:
                raise SettingsError(
                    f"{name} is {getattr(self, name)}; it must be above 0 and below {most}"
                )
        if self.simulated_scale < 0:
            raise SettingsError(f"simulated_scale is {self.simulated_scale}; at least 0 is needed")


def threads_for(sessions: int) -> int:
    """Triton's thread-pool-size with which no session ever waits for a thread."""
    return OTHER_THREADS + 3 * (sessions + 2)


def _parse(name: str, text: str, kind: type) -> str | int | float:
    if kind is bool:
        if text.lower() not in _BOOLEANS:
            raise SettingsError(f"{name} is {text!r}; it must be true or false")
        return _BOOLEANS[text.lower()]
    try:
        value: str | int | float = kind(text)
    except ValueError:
        raise SettingsError(f"{name} is {text!r}; it must be of type {kind.__name__}") from None
    return value
