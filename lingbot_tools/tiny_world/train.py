"""`scripts/train-tiny`: from nothing to a checkpoint of the tiny world.

Each stage goes on from what the work folder holds.
"""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
import rich
import torch
from lingbot_client.cli import INTERRUPTED

from lingbot_tools.tiny_world import export
from lingbot_tools.tiny_world.card import draw_curves, write_card
from lingbot_tools.tiny_world.dit_training import DiTTrainee
from lingbot_tools.tiny_world.films import Films, FilmsSize, channel_weights, make_films
from lingbot_tools.tiny_world.loop import Run, Trainee, Work
from lingbot_tools.tiny_world.network import TINY, build_network
from lingbot_tools.tiny_world.vae_training import (
    VAEConfig,
    VAETrainee,
    latent_statistics,
    load_vae,
    normalise,
)
from lingbot_triton.world.config import TransformerConfig

_MAX_MEGABYTES = 16
DEFAULT_WORK = Path(__file__).resolve().parents[2] / "out" / "train-tiny"
_STATISTICS_STEPS = range(10_000_000, 10_000_012)
"""Steps whose films no training reaches."""


@dataclass(frozen=True)
class Plan:
    """Everything that a training depends on."""

    seed: int = 0
    vae_minutes: float = 37
    film_minutes: float = 27
    dit_minutes: float = 110
    """174 in all, which leaves some for the rest."""
    films: FilmsSize = field(default_factory=FilmsSize)
    processes: int = 2
    vae: VAEConfig = field(default_factory=VAEConfig)
    network: TransformerConfig = TINY
    dit_batch: int = 4
    max_steps: int | None = None
    """Ends each training stage early; for trials."""


@dataclass(frozen=True)
class Training:
    plan: Plan
    work: Work

    def run(self) -> Path:
        """Every stage; returns the checkpoint's folder, `checkpoint` in the work folder.

        Raises ClickException where the work folder was begun with another seed or other sizes.
        """
        begun, plan = self.work.read_json("plan.json"), json.loads(json.dumps(asdict(self.plan)))
        for name in ("seed", "vae", "network"):
            if begun is not None and begun[name] != plan[name]:
                raise click.ClickException(
                    f"{self.work.root} was begun with {name} {begun[name]}, not {plan[name]}"
                )
        self.work.write_json("plan.json", asdict(self.plan))
        self.train_vae()
        self.make_films()
        self.train_transformer()
        return self.export()

    @property
    def checkpoint(self) -> Path:
        return self.work.path("checkpoint")

    def train_vae(self) -> None:
        """Leaves the normalised VAE in `vae-final.pt`, from which films are encoded."""
        if self.work.path("vae-final.pt").exists():
            return
        trainee = VAETrainee(self.plan.vae, self.plan.seed)
        weights = self._train(trainee, self.plan.vae_minutes)
        vae = trainee.module.eval()
        vae.load_state_dict(weights)
        normalise(vae, *latent_statistics(vae, map(trainee.films, _STATISTICS_STEPS)))
        self.work.replace("vae-final.pt", partial(torch.save, vae.state_dict()))

    def make_films(self) -> None:
        """Once: later runs go on with the films that there were time for."""
        if self.work.read_json("films.json") is not None:
            return
        plan, base_dim = self.plan, self.plan.vae.base_dim
        make_films(self.work, plan.films, base_dim, plan.film_minutes, plan.processes)
        self.work.write_json("films.json", {"films": len(Films.load(self.work).scenes)})

    def train_transformer(self) -> None:
        """Leaves it in `dit.pt`, its running average beside it."""
        plan = self.plan
        export.write_tokenizer(self.checkpoint)
        export.write_encoder(self.checkpoint, plan.seed)
        films = Films.load(self.work)
        path = self.work.path("channel-weights.pt")
        if not path.exists():
            vae = load_vae(self.work, plan.vae.base_dim)
            computed = channel_weights(vae, films, min(8, len(films.scenes) // 4))
            self.work.replace(path.name, partial(torch.save, computed))
        weights = torch.load(path, weights_only=True)
        network = build_network(plan.network, plan.seed)
        trainee = DiTTrainee(network, films, self.checkpoint, weights, plan.dit_batch, plan.seed)
        self._train(trainee, plan.dit_minutes)

    def export(self) -> Path:
        """Write the checkpoint with the newest weights that there are; returns its folder."""
        kept = self.work.load(DiTTrainee.name)
        if kept is not None:
            export.write_transformer(self.checkpoint, self.plan.network, kept[1]["average"])
        export.write_vae(self.checkpoint, load_vae(self.work, self.plan.vae.base_dim))
        write_card(self.checkpoint, self.work)
        return self.checkpoint

    def _train(self, trainee: Trainee, minutes: float) -> dict[str, torch.Tensor]:
        draw = partial(draw_curves, self.work, self.work.path("losses.png"))
        run = Run(trainee, self.work, draw)
        run.train(minutes, self.plan.max_steps)
        return run.average


@click.command(context_settings={"show_default": True})
@click.option("--work", type=click.Path(path_type=Path, file_okay=False), default=DEFAULT_WORK)
@click.option("--seed", type=int, default=0)
@click.option("--vae-minutes", type=click.FloatRange(0), default=Plan.vae_minutes)
@click.option("--film-minutes", type=click.FloatRange(0), default=Plan.film_minutes)
@click.option("--dit-minutes", type=click.FloatRange(0), default=Plan.dit_minutes)
@click.option("--films", type=click.IntRange(16), default=3200, help="At most; of 81 frames each.")
@click.option("--threads", type=click.IntRange(1), default=2, help="Cores to use.")
@click.option("--export-only", is_flag=True, help="Write the checkpoint from what there is.")
def main(work: Path, films: int, threads: int, export_only: bool, **plan: Any) -> None:
    """Train the tiny world's weights, stage by stage, within the given minutes.

    Everything is kept in the work folder, every two minutes and on Ctrl-C: the same command goes
    on from there. losses.png shows the curves, checkpoint/ is the result.
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background jobs ignore the first
        signal.signal(number, signal.default_int_handler)
    torch.set_num_threads(threads)
    training = Training(Plan(films=FilmsSize(films), processes=threads, **plan), Work(work))
    try:
        checkpoint = training.export() if export_only else training.run()
    except KeyboardInterrupt:
        rich.print(f"stopped; everything so far is in {work}, the same command goes on")
        sys.exit(INTERRUPTED)
    size = sum(path.stat().st_size for path in checkpoint.rglob("*") if path.is_file())
    rich.print(f"{checkpoint} holds {size / 1e6:.1f} MB; at most {_MAX_MEGABYTES} may ship")


if __name__ == "__main__":
    main(prog_name="scripts/train-tiny")
