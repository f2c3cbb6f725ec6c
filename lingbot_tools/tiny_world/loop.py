"""One training stage: steps until its minutes are used up, saved now and then; its work folder."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from rich import get_console
from rich.progress import BarColumn, Progress, TimeElapsedColumn

Losses = dict[str, torch.Tensor]

_WARM_UP_STEPS = 50
_FLOOR = 0.02
"""Share of the learning rate that is left at the end."""
_SAVE_SECONDS = 120
_DECAY = 0.998
"""Of the running average."""


class Trainee(Protocol):
    """What a stage trains and how."""

    name: str
    optimisers: list[torch.optim.Optimizer]

    @property
    def module(self) -> torch.nn.Module: ...

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
    """Per name (step, value)."""


@dataclass(frozen=True)
class Work:
    """Paths below one folder; every file is replaced whole, so an interruption leaves the old."""

    root: Path

    def path(self, name: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def replace(self, name: str, write: Callable[[Path], object]) -> None:
        unfinished = self.path(name).with_suffix(".partial")
        write(unfinished)
        os.replace(unfinished, self.path(name))

    def load(self, stage: str) -> tuple[Reached, dict[str, Any]] | None:
        """A stage's progress and state, None where there is nothing yet."""
        path = self.path(f"{stage}.pt")
        if not path.exists():
            return None
        content = torch.load(path, map_location="cpu", weights_only=True)
        return Reached(**content["reached"]), content["state"]

    def write_json(self, name: str, content: Any) -> None:
        self.replace(name, lambda path: path.write_text(json.dumps(content, indent=2) + "\n"))

    def read_json(self, name: str) -> Any:
        """The content of a JSON file, None where there is none."""
        path = self.path(name)
        return json.loads(path.read_text()) if path.exists() else None


class Muon(torch.optim.Muon):
    """Muon for weights of any shape, each taken as the matrix [out, in · size]."""

    def __init__(self, weights: list[torch.nn.Parameter], rate: float, decay: float) -> None:
        self.weights = weights
        self.matrices = [torch.nn.Parameter(weight.data.flatten(1)) for weight in weights]
        super().__init__(self.matrices, rate, decay, adjust_lr_fn="match_rms_adamw")

    def step(self, closure: Any = None) -> Any:
        for weight, matrix in zip(self.weights, self.matrices, strict=True):
            # Loading weights keeps the storage that both share.
            matrix.grad = weight.grad.flatten(1) if weight.grad is not None else None
        return super().step(closure)  # type: ignore[no-untyped-call]


def optimisers(
    module: torch.nn.Module,
    inner: Callable[[str, torch.nn.Parameter], bool],
    muon: tuple[float, float],
    rate: float,
) -> list[torch.optim.Optimizer]:
    """Muon, with a rate and a weight decay, for the `inner` weights, AdamW for everything else."""
    weights: list[torch.nn.Parameter] = []
    others: list[torch.nn.Parameter] = []
    for name, parameter in module.named_parameters():
        (weights if inner(name, parameter) else others).append(parameter)
    return [Muon(weights, *muon), torch.optim.AdamW(others, rate, (0.9, 0.98), weight_decay=0.0)]


class Run:
    """One stage, from where the work folder left off."""

    def __init__(self, trainee: Trainee, work: Work, on_save: Callable[[], None]) -> None:
        self.trainee, self.work, self.on_save = trainee, work, on_save
        self.reached = Reached()
        self.average = {name: p.detach().clone() for name, p in trainee.module.named_parameters()}
        """Running average of the weights, which is what is used in the end."""
        # As they were built: what is resumed holds the rates of its last step.
        self.rates = [[float(group["lr"]) for group in o.param_groups] for o in trainee.optimisers]
        if (kept := work.load(trainee.name)) is not None:
            self.reached, state = kept
            trainee.module.load_state_dict(state["module"])
            self.average = state["average"]
            for optimiser, content in zip(trainee.optimisers, state["optimisers"], strict=True):
                optimiser.load_state_dict(content)

    def train(self, minutes: float, max_steps: int | None) -> None:
        """Train for `minutes` or `max_steps` in all.

        Ctrl-C waits for the step's end, which is kept before KeyboardInterrupt goes on.
        """
        reached, console, name = self.reached, get_console(), self.trainee.name
        saved = time.monotonic()
        columns = "{task.description}", BarColumn(), "{task.fields[figures]}", TimeElapsedColumn()
        with Progress(*columns, refresh_per_second=1) as progress:
            task = progress.add_task(name, total=1.0, figures="")
            caught: list[int] = []
            handlers = {
                number: signal.signal(number, lambda number, frame: caught.append(number))
                for number in (signal.SIGINT, signal.SIGTERM)
            }
            try:
                while not caught and (share := self._share(minutes, max_steps)) < 1:
                    values = self._step(share)
                    terms = (f"{name} {value:.4f}" for name, value in values.items())
                    figures = f"step {reached.step} {' '.join(terms)}"
                    progress.update(task, completed=share, figures=figures)
                    if time.monotonic() - saved > _SAVE_SECONDS:
                        self._save()
                        saved = time.monotonic()
                        if not console.is_terminal:  # a log file sees no progress bar
                            console.print(f"{name} {reached.seconds / 60:.0f} min, {figures}")
            finally:
                self._save()
                for number, handler in handlers.items():
                    signal.signal(number, handler)
        if caught:
            signal.raise_signal(caught[0])

    def _share(self, minutes: float, max_steps: int | None) -> float:
        """How much of the stage is done, 0 to 1, by time or by steps, whichever is ahead."""
        by_time = self.reached.seconds / (60 * minutes) if minutes > 0 else 1.0
        return min(max(by_time, self.reached.step / max_steps if max_steps else 0.0), 1.0)

    def _step(self, share: float) -> dict[str, float]:
        trainee, reached, started = self.trainee, self.reached, time.monotonic()
        losses = trainee.losses(reached.step)
        trainee.module.zero_grad()
        losses["total"].backward()  # type: ignore[no-untyped-call]
        parameters = trainee.module.parameters()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0, error_if_nonfinite=True)
        self._update(share)
        reached.step += 1
        values = {name: float(value.detach()) for name, value in losses.items()}
        reached.seconds += time.monotonic() - started
        for name, value in values.items():
            reached.losses.setdefault(name, []).append((reached.step, value))
        return values

    @torch.no_grad()
    def _update(self, share: float) -> None:
        step = self.reached.step
        # A short rise, then half a cosine.
        cosine = _FLOOR + (1 - _FLOOR) * (0.5 + 0.5 * math.cos(math.pi * share))
        factor = min(1.0, (step + 1) / _WARM_UP_STEPS) * cosine
        for optimiser, rates in zip(self.trainee.optimisers, self.rates, strict=True):
            for group, rate in zip(optimiser.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            optimiser.step()
        # Early steps count less, or the average would remember the random start.
        decay = min(_DECAY, (1 + step) / (10 + step))
        for name, parameter in self.trainee.module.named_parameters():
            self.average[name].lerp_(parameter, 1 - decay)

    def _save(self) -> None:
        state: dict[str, Any] = {
            "module": self.trainee.module.state_dict(),
            "average": self.average,
            "optimisers": [optimiser.state_dict() for optimiser in self.trainee.optimisers],
        }
        content = {"reached": vars(self.reached), "state": state}
        self.work.replace(f"{self.trainee.name}.pt", partial(torch.save, content))
        self.on_save()
