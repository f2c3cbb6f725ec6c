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
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from lingbot_triton.protocol import ORCHESTRATOR, ModelSpec
from lingbot_triton.settings import Settings, SettingsError
from lingbot_triton.stage import DENOISE_STAGE, MODELS

MAXIMUM_COUNT = 64
MAXIMUM_SLOTS = 1024
PLACED = ("devices", "count", "slots")
SHARED = ("max_sessions",)
"""Settings that only make sense for the orchestrator."""


class PlacementError(ValueError):
    """A placement that cannot be used; the message names the table and what it accepts."""


@dataclass(frozen=True)
class Place:
    """One model's part of a placement."""

    gpus: tuple[int, ...] = ()
    """GPUs that each have `count` instances; without any, the instances belong to no GPU."""
    count: int = 1
    slots: int = 0
    """Sequences an instance can hold; 0 leaves what the model's spec says."""
    settings: Mapping[str, str] = field(default_factory=dict)
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
    known = PLACED if spec is not ORCHESTRATOR else ()
    settings = {name: value for name, value in table.items() if name not in PLACED}
    for name in table:
        if name in PLACED and name not in known:
            raise PlacementError(f"[{spec.name}] runs once, on the CPU: {name} is not taken")
    if "slots" in table and not spec.sequence_slots:
        raise PlacementError(f"[{spec.name}] holds no sessions: slots is not taken")
    gpus, device = _devices(spec.name, table.get("devices", []))
    return Place(
        gpus=gpus,
        count=_whole(spec.name, "count", table.get("count", 1), MAXIMUM_COUNT),
        slots=_whole(spec.name, "slots", table["slots"], MAXIMUM_SLOTS) if "slots" in table else 0,
        settings=device | _settings(spec, settings),
    )


def _devices(model: str, devices: Any) -> tuple[tuple[int, ...], dict[str, str]]:
    """The GPUs that are named, or the setting that keeps a model on the CPU."""
    texts = devices if isinstance(devices, list) else [devices]
    if texts == ["cpu"]:
        return (), {"device": "cpu"}
    matches = [re.fullmatch(r"cuda:(\d+)", str(text)) for text in texts]
    gpus = tuple(int(match[1]) for match in matches if match)
    if len(gpus) != len(texts) or len(set(gpus)) != len(gpus):
        raise PlacementError(
            f'[{model}] devices is {devices!r}; it must be ["cpu"] or different GPUs, such as '
            '["cuda:0", "cuda:1"]'
        )
    return gpus, {}


def _whole(model: str, name: str, value: Any, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise PlacementError(f"[{model}] {name} is {value!r}; it must be a number from 1 to {most}")
    return value


def _settings(spec: ModelSpec, given: dict[str, Any]) -> dict[str, str]:
    """The settings of a table as Triton's configurations hold them."""
    known = {item.name for item in fields(Settings)} - {"device"}
    if spec is not ORCHESTRATOR:
        known -= set(SHARED)
    for name in given:
        if name not in known:
            raise PlacementError(
                f"[{spec.name}] {name} is not known; known: {', '.join([*PLACED, *sorted(known)])}"
            )
    settings = {name: str(value) for name, value in given.items()}
    try:
        Settings.load(settings, environ={})
    except SettingsError as error:
        raise PlacementError(f"[{spec.name}] {error}") from None
    return settings


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
