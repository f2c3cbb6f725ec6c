"""One training stage: steps until its minutes are used up, saved now and then."""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from lingbot_tools.tiny_world.work import Reached, Work

Losses = dict[str, torch.Tensor]

_WARM_UP_STEPS = 50
_FLOOR = 0.02
"""Share of the learning rate that is left at the end."""
_MEAN_STEPS = 10


class Trainee(Protocol):
    """What a stage trains and how."""

    name: str
    module: torch.nn.Module
    optimisers: list[torch.optim.Optimizer]

    def losses(self, step: int) -> Losses:
        """Terms of step number `step`; `total` is the one that is minimised.

        Whatever is drawn at random must follow from the seed and `step` alone.
        """


@dataclass(frozen=True)
class Budget:
    """Where a stage ends, whichever comes first."""

    minutes: float
    steps: int | None = None

    def share(self, reached: Reached) -> float:
        """How much of it is used, 0 to 1."""
        by_time = reached.seconds / (60 * self.minutes) if self.minutes > 0 else 1.0
        by_steps = reached.step / self.steps if self.steps else 0.0
        return min(max(by_time, by_steps), 1.0)


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
    budget: Budget,
    console: Console,
    *,
    save_seconds: float = 120,
    on_save: Callable[[], None] = lambda: None,
) -> dict[str, torch.Tensor]:
    """Train until `budget` is used up, from where `work` left off; returns averaged weights.

    On Ctrl-C the last step is kept before KeyboardInterrupt goes on.
    """
    average = Average(trainee.module)
    # As they were built: what is resumed holds the rates of its last step.
    rates = [[float(group["lr"]) for group in each.param_groups] for each in trainee.optimisers]
    reached = _resume(trainee, average, work)
    sums: dict[str, float] = {}
    saved = time.monotonic()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, refresh_per_second=1) as progress:
        task = progress.add_task(trainee.name, total=1.0, figures="")
        try:
            while (share := budget.share(reached)) < 1:
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
                if time.monotonic() - saved > save_seconds:
                    _save(trainee, average, work, reached)
                    on_save()
                    saved = time.monotonic()
                    if not console.is_terminal:  # a log file sees no progress bar
                        minutes = reached.seconds / 60
                        console.print(f"{trainee.name} {minutes:.0f} min, {figures}")
        finally:
            _save(trainee, average, work, reached)
            on_save()
    return average.weights


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
