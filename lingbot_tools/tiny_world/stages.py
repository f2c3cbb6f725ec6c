"""The stages of a training, one after another; each goes on from what the work folder holds."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from lingbot_tools.tiny_world import export
from lingbot_tools.tiny_world.batches import Batches
from lingbot_tools.tiny_world.card import draw_curves, write_card
from lingbot_tools.tiny_world.dit_training import DiTConfig, DiTTrainee
from lingbot_tools.tiny_world.films import Films, FilmsSize, channel_weights, make_films
from lingbot_tools.tiny_world.loop import Trainee, Work, train
from lingbot_tools.tiny_world.network import NetworkSize, build_network
from lingbot_tools.tiny_world.vae_training import (
    VAEConfig,
    VAETrainee,
    build_vae,
    latent_statistics,
    normalise,
)

_STATISTICS_STEPS = range(10_000_000, 10_000_012)
"""Steps whose films no training reaches."""


@dataclass(frozen=True)
class Minutes:
    """What each stage is given; 174 in all, which leaves some for the rest."""

    vae: float = 37
    films: float = 27
    dit: float = 110


@dataclass(frozen=True)
class Plan:
    """Everything that a training depends on."""

    seed: int = 0
    minutes: Minutes = field(default_factory=Minutes)
    films: FilmsSize = field(default_factory=FilmsSize)
    processes: int = 2
    vae: VAEConfig = field(default_factory=VAEConfig)
    network: NetworkSize = field(default_factory=NetworkSize)
    dit: DiTConfig = field(default_factory=DiTConfig)
    max_steps: int | None = None
    """Ends each training stage early; for trials."""


class PlanError(ValueError):
    """A work folder that holds another training."""


@dataclass(frozen=True)
class Training:
    plan: Plan
    work: Work
    console: Console

    def run(self) -> Path:
        """Every stage; returns the checkpoint's folder, `checkpoint` in the work folder.

        Raises PlanError where the work folder was begun with another seed or other sizes.
        """
        self._check_plan()
        self.work.write_json("plan.json", asdict(self.plan))
        self.train_vae()
        self.make_films()
        self.train_transformer()
        return self.export()

    def _check_plan(self) -> None:
        begun, plan = self.work.read_json("plan.json"), json.loads(json.dumps(asdict(self.plan)))
        for name in ("seed", "vae", "network"):
            if begun is not None and begun[name] != plan[name]:
                raise PlanError(
                    f"{self.work.root} was begun with {name} {begun[name]}, not {plan[name]}"
                )

    @property
    def checkpoint(self) -> Path:
        return self.work.path("checkpoint")

    def train_vae(self) -> None:
        """Leaves the normalised VAE in `vae-final.pt`, from which films are encoded."""
        if self.work.path("vae-final.pt").exists():
            return
        trainee = VAETrainee(self.plan.vae, self.plan.seed)
        weights = self._train(trainee, self.plan.minutes.vae)
        vae = trainee.module.eval()
        vae.load_state_dict(weights)
        normalise(vae, *latent_statistics(vae, map(trainee.films, _STATISTICS_STEPS)))
        torch.save(vae.state_dict(), self.work.path("vae-final.pt"))

    def make_films(self) -> None:
        """Once: later runs go on with the films that there were time for."""
        if self.work.read_json("films.json") is not None:
            return
        plan, minutes = self.plan, self.plan.minutes.films
        make_films(self.work, plan.films, plan.vae.base_dim, minutes, plan.processes, self.console)
        self.work.write_json("films.json", {"films": len(Films.load(self.work).scenes)})

    def load_vae(self) -> Any:
        vae = build_vae(self.plan.vae.base_dim, 0).eval().requires_grad_(False)
        vae.load_state_dict(torch.load(self.work.path("vae-final.pt"), weights_only=True))
        return vae

    def train_transformer(self) -> None:
        """Leaves it in `dit.pt`, its running average beside it."""
        plan = self.plan
        export.write_text(self.checkpoint, plan.seed)
        films = Films.load(self.work)
        batches = Batches(films, self.checkpoint, plan.dit.batch, plan.seed)
        weights = self._channel_weights(films)
        network = build_network(plan.network.config(), plan.seed)
        self._train(DiTTrainee(network, batches, weights, plan.dit, plan.seed), plan.minutes.dit)

    def export(self) -> Path:
        """Write the checkpoint with the newest weights there are."""
        config = self.plan.network.config()
        kept = self.work.load(DiTTrainee.name)
        if kept is not None:
            export.write_transformer(self.checkpoint, config, kept[1]["average"])
        export.write_vae(self.checkpoint, self.load_vae())
        write_card(self.checkpoint, self.work)
        self._draw_curves()
        return self.checkpoint

    def _channel_weights(self, films: Films) -> torch.Tensor:
        path = self.work.path("channel-weights.pt")
        if not path.exists():
            few = min(8, len(films.scenes) // 4)
            torch.save(channel_weights(self.load_vae(), films, few), path)
        weights: torch.Tensor = torch.load(path, weights_only=True)
        return weights

    def _train(self, trainee: Trainee, minutes: float) -> dict[str, torch.Tensor]:
        steps = self.plan.max_steps
        return train(trainee, self.work, minutes, steps, self.console, self._draw_curves)

    def _draw_curves(self) -> None:
        draw_curves(self.work, self.work.path("losses.png"))
