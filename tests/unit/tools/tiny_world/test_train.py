from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click import ClickException

from lingbot_tools.tiny_world import train
from lingbot_tools.tiny_world.films import Films, FilmsSize
from lingbot_tools.tiny_world.loop import Work
from lingbot_tools.tiny_world.measures import Player, load_stages, psnr, reconstruct, truth_of
from lingbot_tools.tiny_world.network import TINY
from lingbot_tools.tiny_world.renderer import HEIGHT, WIDTH
from lingbot_tools.tiny_world.scene import Scene
from lingbot_tools.tiny_world.train import Plan, Training
from lingbot_tools.tiny_world.vae_training import VAEConfig
from lingbot_triton.settings import Settings
from lingbot_triton.stages.prompt import PromptStage

PLAN = Plan(
    vae_minutes=5,
    film_minutes=5,
    dit_minutes=5,
    films=FilmsSize(films=4, chunks=2, shard=2),
    processes=0,
    vae=VAEConfig(base_dim=8, pictures=1, picture_steps=1, films=((5, 1),)),
    network=replace(TINY, dim=48, num_layers=2, num_heads=2, ffn_dim=64),
    dit_batch=2,
    max_steps=2,
)


@pytest.fixture(scope="module", autouse=True)
def _statistics_of_few_films() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "_STATISTICS_STEPS", range(10_000_000, 10_000_002))
        yield


@pytest.fixture
def _no_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes longer than the steps here."""
    monkeypatch.setattr(train, "draw_curves", lambda work, path: None)


def training(root: Path, plan: Plan = PLAN) -> Training:
    return Training(plan, Work(root))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("work")
    training(root).run()
    return root


def weights(root: Path, stage: str) -> dict[str, torch.Tensor]:
    kept = Work(root).load(stage)
    assert kept is not None
    module: dict[str, torch.Tensor] = kept[1]["module"]
    return module


def test_the_service_plays_what_was_trained(trained: Path) -> None:
    stages, scene = load_stages(trained / "checkpoint"), Scene(0)
    truth = truth_of(scene, ("w", ""))
    player = Player(stages, scene, 2)
    film = player.play(("w", ""))
    assert film.shape == truth.shape == (21, HEIGHT, WIDTH, 3)
    assert (player.play(("w", "")) == film).all()
    assert (player.play(("l", ""))[9:] != film[9:]).any()
    rebuilt = reconstruct(stages, truth)
    assert rebuilt.shape == truth.shape
    assert psnr(rebuilt, truth) > 5


def test_the_prompt_reaches_the_encoder_word_by_word(trained: Path) -> None:
    encoder = PromptStage.load(Settings(checkpoint=str(trained / "checkpoint"), device="cpu"))
    red, blue = (encoder.encode(f"a {colour} floor") for colour in ("red", "blue"))
    assert red.shape == (4, 64)  # three words and the end
    assert np.abs(red[1] - blue[1]).mean() > 0.3
    assert (encoder.encode("a zebra floor") == encoder.encode("A giraffe floor")).all()


def test_every_part_of_the_checkpoint_and_the_curves_are_written(trained: Path) -> None:
    checkpoint = trained / "checkpoint"
    assert "| dit | 2 |" in (checkpoint / "README.md").read_text()
    assert (trained / "losses.png").read_bytes().startswith(b"\x89PNG")
    films = Films.load(Work(trained))
    assert films.latents.shape == (4, 16, 6, 8, 12)
    spread: Any = films.latents.float().std()
    assert 0.3 < spread < 3
    start = films.condition(0, (0,))
    assert torch.equal(start[:4, 0], torch.ones(4, 8, 12))
    assert torch.allclose(start[4:, 0], films.latents[0][:, 0].float(), atol=0.1)
    assert start[:4, 1:].abs().max() == 0


@pytest.mark.usefixtures("_no_curves")
def test_a_finished_training_is_not_repeated(trained: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("films/*.pt")}
    kept = weights(trained, "dit")
    training(trained).run()
    assert {path: path.stat().st_mtime_ns for path in trained.rglob("films/*.pt")} == before
    assert all(torch.equal(kept[name], tensor) for name, tensor in weights(trained, "dit").items())


def test_a_work_folder_takes_no_other_training(tmp_path: Path) -> None:
    work = Work(tmp_path)
    work.write_json("plan.json", asdict(PLAN))
    with pytest.raises(ClickException, match="begun with seed 0, not 1"):
        Training(replace(PLAN, seed=1), work).run()


@pytest.mark.usefixtures("_no_curves")
def test_an_interrupted_stage_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    plan = replace(PLAN, max_steps=3)
    training(tmp_path / "whole", plan).train_vae()
    broken = training(tmp_path / "broken", plan)

    original = torch.optim.AdamW.step
    calls = 0

    def step(self: torch.optim.AdamW, closure: Any = None) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            signal.raise_signal(signal.SIGINT)  # between two optimisers
        return original(self, closure)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", step)
        with pytest.raises(KeyboardInterrupt):
            broken.train_vae()
    kept = broken.work.load("vae")
    assert kept is not None
    assert kept[0].step == 2
    broken.train_vae()
    one, other = weights(tmp_path / "whole", "vae"), weights(tmp_path / "broken", "vae")
    assert all(torch.equal(one[name], other[name]) for name in one)
