"""The regression command on the golden data, untouched and tampered with."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

from lingbot_tools.regression.command import main
from lingbot_tools.regression.compare import play_on_stages
from lingbot_tools.regression.expectations import ExpectationError, Expectations
from lingbot_triton.settings import EMBEDDED_CHECKPOINT
from tests.checkpoints import GOLDEN


@pytest.fixture
def folder(act, tmp_path):
    """A copy of the small expectations that may be changed."""
    copy = tmp_path / "expected"
    shutil.copytree(act.expected, copy)
    return copy


def change(path, **tensors):
    """Replace tensors of a safetensors file; None removes one."""
    content = {**load_file(path), **tensors}
    save_file({name: value for name, value in content.items() if value is not None}, path)


def run(checkpoint, expected):
    result = CliRunner().invoke(main, [str(checkpoint), str(expected)])
    return result.exit_code, json.loads(result.stdout)


def test_everything_is_compared_and_within_tolerance(golden):
    report = play_on_stages(golden.checkpoint, golden.expected)
    assert [check.name for check in report.checks if not check.ok] == []
    compared = {check.name for check in report.checks}
    for stem in [path.stem for path in golden.expected.glob("session_*.safetensors")]:
        assert {f"{stem}.{name}" for name in golden.file(stem)} <= compared
    control = {name for name in golden.file("control") if not name.startswith("offline_")}
    assert {f"control.{name}" for name in control} <= compared
    assert {f"text.{name}" for name in golden.file("text")} <= compared
    assert {"schedule.10.0.sigmas", "repeat", "repeat.latents"} <= compared
    assert ("control.offline_control" in compared) == (golden.kind == "cam")
    assert ("condition_long.steady_chunk" in compared) == (golden.kind == "cam")
    assert report.measures["session_full.frames_u8.ssim"] > 0.999


def test_the_command_prints_one_object(act, folder):
    code, content = run(act.checkpoint, folder)
    assert (code, content["ok"], content["failed"]) == (0, True, [])
    assert content["measures"]["session_full.frames_u8.psnr"] > 60
    assert content["tolerances"]["latents"] == 2e-4


def test_what_differs_is_named_and_fails(act, folder):
    """Each of these is off by itself; all that is not named must be within tolerance."""
    changed = [
        ("control", "control_1"),
        ("session_full", "flow_1_2"),
        ("session_full", "frames_u8"),
        ("session_full", "latents"),
        ("text", "ids_0"),
    ]
    for file, tensor in changed:
        path = folder / f"{file}.safetensors"
        wrong = load_file(path)[tensor].copy()
        wrong.flat[0] += 3
        change(path, **{tensor: wrong})
    # Undefined numbers and other shapes are no less wrong.
    path = folder / "session_seed7_shift5_prompt1.safetensors"
    latents = load_file(path)["latents"]
    change(path, latents=np.full_like(latents, np.nan), kv_last_k=latents)
    code, content = run(act.checkpoint, folder)
    assert code == 1
    other = [(path.stem, "kv_last_k"), (path.stem, "latents")]
    assert set(content["failed"]) == {f"{file}.{tensor}" for file, tensor in changed + other}


def test_what_is_absent_or_unknown_is_told(act, folder):
    for name in ("text.safetensors", "schedule.json", "control.safetensors"):
        (folder / name).unlink()
    (folder / "session_full.safetensors").rename(folder / "session_sideways.safetensors")
    change(folder / "session_seed7_shift5_prompt1.safetensors", extra=np.zeros(2))
    code, content = run(act.checkpoint, folder)
    assert code == 0
    assert {
        "text.safetensors",
        "schedule.json",
        "control.safetensors",
        "condition_long.safetensors",
        "session_sideways.safetensors",
        "session_seed7_shift5_prompt1.extra",
        "session_seed7_shift5_prompt1.frames_u8",
    } <= set(content["not_compared"])


def test_a_folder_without_sessions_is_still_played_twice(act, folder):
    for path in folder.glob("*.safetensors"):
        path.unlink()
    code, content = run(act.checkpoint, folder)
    assert code == 0
    assert "session_full.safetensors" in content["not_compared"]
    repeated = [(check["name"], check["difference"]) for check in content["checks"]]
    assert repeated[-2:] == [("repeat", 0.0), ("repeat.latents", 0.0)]


def test_variants_are_read_from_file_names(folder):
    save_file({}, folder / "session_window12_sink2_seed9_shift2.5_prompt2.safetensors")
    variants, unknown = Expectations.load(folder).variants()
    assert variants[0].file == "session_full"
    assert unknown == []
    varied = next(variant for variant in variants if "window12" in variant.file)
    options = varied.options
    assert (options.kv_window_frames, options.kv_sink_frames) == (12, 2)
    assert (options.seed, options.shift, varied.prompt) == (9, 2.5, "")


def test_the_wrong_checkpoint_is_told(cam, folder):
    with pytest.raises(ExpectationError, match="is of control type act"):
        play_on_stages(cam.checkpoint, folder)
    result = CliRunner().invoke(main, [str(cam.checkpoint), str(folder)])
    assert result.exit_code == 2
    assert "control type" in result.stderr


@pytest.mark.parametrize(
    ("session", "message"),
    [({}, "lacks 'keys_per_chunk'"), ({"chunk_size": 4}, "chunks of 4 latent frames")],
)
def test_a_session_that_cannot_be_played_is_told(folder, session, message):
    path = folder / "session.json"
    content = {**json.loads(path.read_text()), **session} if session else {}
    path.write_text(json.dumps(content))
    with pytest.raises(ExpectationError, match=message):
        Expectations.load(folder)


def test_what_is_recorded_is_what_the_official_code_gives_and_says_who_made_it(act, folder):
    official = load_file(folder / "session_full.safetensors")
    result = CliRunner().invoke(main, [str(act.checkpoint), str(folder), "--record"])
    assert result.exit_code == 0, result.output
    recorded = load_file(folder / "session_full.safetensors")
    assert set(recorded) == {"condition", "latents", "frames_u8"}
    for name in ("condition", "latents"):
        np.testing.assert_allclose(recorded[name], official[name], atol=2e-4)
    assert json.loads((folder / "session.json").read_text())["made_by"] == "lingbot-triton"
    _, content = run(act.checkpoint, folder)
    assert content["ok"]
    assert content["measures"]["session_full.frames_u8.psnr"] == "inf"


def test_the_tiny_world_gives_what_it_gave():
    """Made by this project: the official code never saw these weights."""
    expected = GOLDEN / "tiny-world" / "expected"
    assert Expectations.load(expected).session["made_by"] == "lingbot-triton"
    report = play_on_stages(EMBEDDED_CHECKPOINT, expected)
    assert [check.name for check in report.checks if not check.ok] == []
    compared = {check.name for check in report.checks}
    assert {f"session_full.{name}" for name in ("condition", "latents")} <= compared
