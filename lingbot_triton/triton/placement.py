"""Where each model runs, how many instances it has and what its settings are: a TOML file.

    [orchestrator]
    max_sessions = 4

    [denoise]
    devices = ["cuda:0", "cuda:1"]
    count = 1              # instances on each device
    slots = 16             # sessions an instance can hold
    dtype = "bfloat16"     # any other name is a setting of that model

A model that is not named stays as it is by default: one instance, where its `device` setting says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, NonNegativeInt

from lingbot_triton.protocol import ORCHESTRATOR, ModelSpec
from lingbot_triton.schema import Schema
from lingbot_triton.settings import Settings, SettingsError
from lingbot_triton.stage import DENOISE_STAGE, MODELS

MAX_COUNT = 64
MAX_SLOTS = 1024
PLACED = ("devices", "count", "slots")
SHARED = ("max_sessions",)
"""Settings that only make sense for the orchestrator."""


class PlacementError(ValueError):
    """A placement that cannot be used; the message names the table and what it accepts."""


class Place(Schema):
    """One model's part of a placement."""

    ERROR: ClassVar[type[Exception]] = PlacementError
    RANGE: ClassVar[str] = "is {value}; it must be a number from {low} to {high}"
    TYPE: ClassVar[str] = RANGE

    gpus: tuple[NonNegativeInt, ...] = ()
    """GPUs that have `count` instances each; without any, the instances belong to no GPU."""
    count: Annotated[int, Field(ge=1, le=MAX_COUNT)] = 1
    slots: Annotated[int, Field(ge=1, le=MAX_SLOTS)] | None = None
    """Sequences an instance can hold; None leaves what the model's spec says."""
    settings: Mapping[str, str] = Field(default_factory=dict)
    """Written into the model's configuration; LINGBOT_* variables override them."""

    @property
    def instances(self) -> int:
        return self.count * max(1, len(self.gpus))


Placement = Mapping[str, Place]
"""Model names with their places; a model that is left out has `DEFAULT`."""

DEFAULT = Place()


def load(path: Path) -> Placement:
    """Read a placement file; raises PlacementError."""
    try:
        return parse(path.read_text())
    except OSError as error:
        raise PlacementError(f"{path} cannot be read: {error.strerror}") from None
    except PlacementError as error:
        raise PlacementError(f"{path}: {error}") from None


def parse(text: str) -> Placement:
    """Read a placement's TOML; raises PlacementError."""
    try:
        import tomllib  # not in the Python 3.10 of older containers, which serve all the same
    except ImportError:
        raise PlacementError("placements need Python 3.11 or newer") from None
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PlacementError(f"not TOML: {error}") from None
    specs = {spec.name: spec for spec in MODELS}
    for name, table in tables.items():
        if name not in specs or not isinstance(table, dict):
            raise PlacementError(f"{name!r} is no model's table; models: {', '.join(specs)}")
    placement = {name: _place(specs[name], table) for name, table in tables.items()}
    _check_slots(placement)
    _check_defaults(placement)
    return placement


def _place(spec: ModelSpec, table: dict[str, Any]) -> Place:
    try:
        _check_names(spec, table)
        gpus, device = _devices(table.get("devices", []))
        settings = {name: str(value) for name, value in table.items() if name not in PLACED}
        Settings.load(settings, environ={})
        sizes = {name: table[name] for name in ("count", "slots") if name in table}
        return Place(gpus=gpus, settings=device | settings, **sizes)
    except (PlacementError, SettingsError) as error:
        raise PlacementError(f"[{spec.name}] {error}") from None


def _check_names(spec: ModelSpec, table: dict[str, Any]) -> None:
    """Refuse what a model's table cannot have."""
    settings = set(Settings.model_fields) - {"device"}
    if spec is not ORCHESTRATOR:
        settings -= set(SHARED)
    for name in table:
        if name in PLACED and spec is ORCHESTRATOR:
            raise PlacementError(f"runs once, on the CPU: {name} is not taken")
        if name == "slots" and not spec.sequence_slots:
            raise PlacementError("holds no sessions: slots is not taken")
        if name not in PLACED and name not in settings:
            known = ", ".join([*PLACED, *sorted(settings)])
            raise PlacementError(f"{name} is not known; known: {known}")


def _devices(devices: Any) -> tuple[tuple[int, ...], dict[str, str]]:
    """The GPUs that are named, or the setting that keeps a model on the CPU."""
    texts = devices if isinstance(devices, list) else [devices]
    if texts == ["cpu"]:
        return (), {"device": "cpu"}
    matches = [re.fullmatch(r"cuda:(\d+)", str(text)) for text in texts]
    gpus = tuple(int(match[1]) for match in matches if match)
    if len(gpus) != len(texts) or len(set(gpus)) != len(gpus):
        raise PlacementError(
            f'devices is {devices!r}; it must be ["cpu"] or different GPUs, such as '
            '["cuda:0", "cuda:1"]'
        )
    return gpus, {}


def _check_defaults(placement: Placement) -> None:
    """The orchestrator fills in what sessions leave out, and denoise is prepared for it."""
    orchestrator, denoise = (
        Settings.load(placement.get(spec.name, DEFAULT).settings, environ={})
        for spec in (ORCHESTRATOR, DENOISE_STAGE)
    )
    for name in ("preset", "max_area"):
        theirs = getattr(orchestrator, name), getattr(denoise, name)
        if theirs[0] != theirs[1]:
            raise PlacementError(
                f"[{ORCHESTRATOR.name}] has {name} {theirs[0]!r}, [{DENOISE_STAGE.name}] "
                f"{theirs[1]!r}; both need the same"
            )


def _check_slots(placement: Placement) -> None:
    """Every session needs a slot in every stage, or its calls would wait for one without end."""
    orchestrator = placement.get(ORCHESTRATOR.name, DEFAULT)
    sessions = Settings.load(orchestrator.settings, environ={}).max_sessions
    for spec in MODELS:
        place = placement.get(spec.name, DEFAULT)
        slots = place.instances * (place.slots or spec.sequence_slots)
        if spec.sequence_slots and slots < sessions:
            raise PlacementError(
                f"[{spec.name}] has {slots} slots in {place.instances} instances; max_sessions of "
                f"[{ORCHESTRATOR.name}] is {sessions}, and every session needs one"
            )
