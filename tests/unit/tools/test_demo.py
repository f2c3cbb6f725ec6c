from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from lingbot_client.playing import Plan
from lingbot_client.report import Recording

from lingbot_tools import demo

Played = list[tuple[Plan, dict[str, str]]]


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    """What the demo would have played, on which settings."""
    plans: Played = []

    def play(plan: Plan, environment: dict[str, str]) -> Recording:
        plans.append((plan, environment))
        return Recording()

    monkeypatch.setattr(demo, "play", play)
    return plans


def _refusal(*arguments: str) -> str:
    result = CliRunner().invoke(demo.main, arguments)
    assert result.exit_code == 1
    return result.stderr


def test_six_chunks_are_played_and_two_files_written(played: Played, tmp_path: Path) -> None:
    result = CliRunner().invoke(demo.main, [f"--out={tmp_path / 'new' / 'folder'}"])
    assert result.exit_code == 0, result.output
    [(plan, environment)] = played
    assert len(plan.controls(3)) == 6
    assert plan.out == tmp_path / "new" / "folder" / "demo.mp4"
    assert plan.sheet == tmp_path / "new" / "folder" / "demo.png"
    assert environment == {}
    assert result.stdout.endswith(f"wrote {plan.out} and {plan.sheet}\n")


def test_options_reach_the_plan_and_the_server(played: Played, tmp_path: Path) -> None:
    options = ["--keys=wj .", "--chunks=3", "--seed=7", "--prompt=a cave", f"--out={tmp_path}"]
    CliRunner().invoke(demo.main, [*options, f"--checkpoint={tmp_path}"])
    [(plan, environment)] = played
    assert [control["keys"] for control in plan.controls(3)] == ["wj", "", "wj"]
    assert plan.prompt == "a cave"
    assert plan.options["seed"] == 7
    assert environment == {"LINGBOT_CHECKPOINT": str(tmp_path)}


def test_an_interrupted_demo_has_its_own_exit_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "play", lambda *_: Recording(interrupted=True))
    assert CliRunner().invoke(demo.main, [f"--out={tmp_path}"]).exit_code == 130


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--image=/nowhere.png"], "cannot read picture /nowhere.png: No such file or directory"),
        (["--keys=w x"], "'x' is no key; keys are w a s d i j k l"),
        (["--keys="], 'no keys given; "." stands still for a chunk'),
        (["--checkpoint=/nowhere"], "checkpoint /nowhere is not a folder"),
        (["--out=/dev/null"], "cannot write to /dev/null: File exists"),
    ],
)
def test_what_cannot_be_played_is_refused_in_one_line(
    played: Played, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    assert _refusal(f"--out={tmp_path}", *arguments) == f"Error: {sentence}\n"
    assert played == []
