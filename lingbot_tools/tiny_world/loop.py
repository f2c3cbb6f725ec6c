"""One training stage: steps until its minutes are used up, saved now and then; its work folder."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TimeElapsedColumn

Losses = dict[str, torch.Tensor]

_WARM_UP_STEPS = 50
_FLOOR = 0.02
"""Share of the learning rate that is left at the end."""
_MEAN_STEPS = 10
_SAVE_SECONDS = 120


class Trainee(Protocol):
    """What a stage trains and how."""

    name: str
    module: torch.nn.Module
    optimisers: list[torch.optim.Optimizer]

    def losses(self, step: int) -> Losses:
        """Terms of step number `step`; `total` is the one that is minimised.

        Whatever is drawn at random must follow from the seed and `step` alone.
        """


@dataclass
class Reached:
    """How far a stage has come."""

    step: int = 0
    seconds: float = 0.0
    losses: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """Per name (step, mean since the one before)."""


@dataclass(frozen=True)
class Work:
    """Paths below one folder; every file is replaced whole, so an interruption leaves the old."""

    root: Path

    def path(self, name: str) -> Path:
        self.root.mkdir(parents=True, exist_ok=True)
        return self.root / name

    def save(self, stage: str, reached: Reached, state: dict[str, Any]) -> None:
        """Keep a stage's progress and `state`, tensors in plain containers."""
        content = {"reached": vars(reached), "state": state}
        path = self.path(f"{stage}.pt")
        partial = path.with_suffix(".partial")
        torch.save(content, partial)
        os.replace(partial, path)

    def load(self, stage: str) -> tuple[Reached, dict[str, Any]] | None:
        """What `save` kept, None where there is nothing yet."""
        path = self.path(f"{stage}.pt")
        if not path.exists():
            return None
        content = torch.load(path, map_location="cpu", weights_only=True)
        return Reached(**content["reached"]), content["state"]

    def write_json(self, name: str, content: Any) -> None:
        path = self.path(name)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(content, indent=2) + "\n")
        os.replace(partial, path)

    def read_json(self, name: str) -> Any:
        """The content of a JSON file, None where there is none."""
        path = self.path(name)
        return json.loads(path.read_text()) if path.exists() else None


class Average:
    """Running average of a module's parameters, which is what is used in the end."""

    def __init__(self, module: torch.nn.Module, decay: float = 0.998) -> None:
        self.decay = decay
        self.weights = {name: p.detach().clone() for name, p in module.named_parameters()}

    @torch.no_grad()
    def update(self, module: torch.nn.Module, step: int) -> None:
        # Early steps count less, or the average would remember the random start.
        decay = min(self.decay, (1 + step) / (10 + step))
        for name, parameter in module.named_parameters():
            self.weights[name].lerp_(parameter, 1 - decay)


def learning_rate(step: int, share: float) -> float:
    """Factor on the learning rate: a short rise, then half a cosine."""
    rise = min(1.0, (step + 1) / _WARM_UP_STEPS)
    return rise * (_FLOOR + (1 - _FLOOR) * (0.5 + 0.5 * math.cos(math.pi * share)))


def train(
    trainee: Trainee,
    work: Work,
    minutes: float,
    max_steps: int | None,
    console: Console,
    on_save: Callable[[], None],
) -> dict[str, torch.Tensor]:
    """Train for `minutes` or `max_steps`, from where `work` left off; returns averaged weights.

    On Ctrl-C the last step is kept before KeyboardInterrupt goes on.
    """
    average = Average(trainee.module)
    # As they were built: what is resumed holds the rates of its last step.
    rates = [[float(group["lr"]) for group in each.param_groups] for each in trainee.optimisers]
    reached = _resume(trainee, average, work)
    sums: dict[str, float] = {}
    saved = time.monotonic()
    columns = "{task.description}", BarColumn(), "{task.fields[figures]}", TimeElapsedColumn()
    with Progress(*columns, console=console, refresh_per_second=1) as progress:
        task = progress.add_task(trainee.name, total=1.0, figures="")
        try:
            while (share := _share(reached, minutes, max_steps)) < 1:
                started = time.monotonic()
                values = _gradients(trainee, reached.step)
                with _uninterrupted():
                    _update(trainee, average, reached.step, share, rates)
                    reached.step += 1
                reached.seconds += time.monotonic() - started
                _note(reached, sums, values)
                terms = (f"{name} {value:.4f}" for name, value in values.items())
                figures = f"step {reached.step} {' '.join(terms)}"
                progress.update(task, completed=share, figures=figures)
                if time.monotonic() - saved > _SAVE_SECONDS:
                    _save(trainee, average, work, reached)
                    on_save()
                    saved = time.monotonic()
                    if not console.is_terminal:  # a log file sees no progress bar
                        console.print(f"{trainee.name} {reached.seconds / 60:.0f} min, {figures}")
        finally:
            _save(trainee, average, work, reached)
            on_save()
    return average.weights


def _share(reached: Reached, minutes: float, max_steps: int | None) -> float:
    """How much of the stage is done, 0 to 1, by time or by steps, whichever is ahead."""
    by_time = reached.seconds / (60 * minutes) if minutes > 0 else 1.0
    return min(max(by_time, reached.step / max_steps if max_steps else 0.0), 1.0)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits: half a step would be kept as none at all."""
    caught: list[int] = []
    before = {
        number: signal.signal(number, lambda number, frame: caught.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    if caught:
        signal.raise_signal(caught[0])


def _gradients(trainee: Trainee, step: int) -> dict[str, float]:
    losses = trainee.losses(step)
    for optimiser in trainee.optimisers:
        optimiser.zero_grad(set_to_none=True)
    losses["total"].backward()  # type: ignore[no-untyped-call]
    norm = torch.nn.utils.clip_grad_norm_(trainee.module.parameters(), 1.0)
    if not torch.isfinite(norm):
        raise FloatingPointError(f"{trainee.name}: step {step} has a gradient of {norm}")
    return {name: float(value.detach()) for name, value in losses.items()}


def _update(
    trainee: Trainee, average: Average, step: int, share: float, rates: list[list[float]]
) -> None:
    factor = learning_rate(step, share)
    for optimiser, full in zip(trainee.optimisers, rates, strict=True):
        for group, rate in zip(optimiser.param_groups, full, strict=True):
            group["lr"] = rate * factor
        optimiser.step()
    average.update(trainee.module, step)


def _note(reached: Reached, sums: dict[str, float], values: dict[str, float]) -> None:
    for name, value in values.items():
        sums[name] = sums.get(name, 0.0) + value
    if reached.step % _MEAN_STEPS == 0:
        for name, value in sums.items():
            reached.losses.setdefault(name, []).append((reached.step, value / _MEAN_STEPS))
        sums.clear()


def _save(trainee: Trainee, average: Average, work: Work, reached: Reached) -> None:
    state: dict[str, Any] = {
        "module": trainee.module.state_dict(),
        "average": average.weights,
        "optimisers": [optimiser.state_dict() for optimiser in trainee.optimisers],
    }
    work.save(trainee.name, reached, state)


def _resume(trainee: Trainee, average: Average, work: Work) -> Reached:
    kept = work.load(trainee.name)
    if kept is None:
        return Reached()
    reached, state = kept
    trainee.module.load_state_dict(state["module"])
    average.weights = state["average"]
    for optimiser, content in zip(trainee.optimisers, state["optimisers"], strict=True):
        optimiser.load_state_dict(content)
    return reached
