from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from lingbot_triton.protocol import ORCHESTRATOR
from lingbot_triton.settings import Settings
from lingbot_triton.stage import DENOISE_STAGE, MODELS
from lingbot_triton.triton import placement, render
from lingbot_triton.triton.configuration import instance_settings
from lingbot_triton.triton.placement import Place, PlacementError

EXAMPLES = sorted(Path(render.REPOSITORY.parent, "examples", "placement").glob("*.toml"))


def test_instances_go_to_the_gpus_that_are_named() -> None:
    places = placement.parse('[denoise]\ndevices = ["cuda:0", "cuda:2"]\ncount = 2\nslots = 8\n')
    text = render.render(DENOISE_STAGE, places["denoise"])
    assert "instance_group [ { count: 2 kind: KIND_GPU gpus: [ 0, 2 ] } ]" in text
    assert "oldest { max_candidate_sequences: 8 }" in text
    assert places["denoise"].instances == 4


def test_settings_are_parameters_of_their_model_alone() -> None:
    places = placement.parse('[denoise]\ndtype = "bfloat16"\n[orchestrator]\nprefetch_depth = 1\n')
    assert places == {
        "denoise": Place(settings={"dtype": "bfloat16"}),
        "orchestrator": Place(settings={"prefetch_depth": "1"}),
    }
    line = 'parameters { key: "dtype" value: { string_value: "bfloat16" } }'
    assert line in render.render(DENOISE_STAGE, places["denoise"])


def test_the_cpu_is_a_device_like_another() -> None:
    (place,) = placement.parse('[decode]\ndevices = ["cpu"]\ncount = 2\n').values()
    assert place == Place(count=2, settings={"device": "cpu"})


def test_text_is_quoted_for_triton() -> None:
    (place,) = placement.parse("[decode]\ncheckpoint = 'C:\\a \"b\"'\n").values()
    text = render.render(DENOISE_STAGE, place)
    assert r'value: { string_value: "C:\\a \"b\"" }' in text


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("denoise", "not TOML"),
        ("[dit]", "'dit' is no model's table; models: orchestrator, prompt,"),
        ("denoise = 1", "'denoise' is no model's table"),
        ('[denoise]\ndevices = ["gpu0"]', r"\[denoise\] devices is \['gpu0'\]"),
        ('[denoise]\ndevices = ["cuda:0", "cuda:0"]', "different GPUs"),
        ('[denoise]\ndevices = ["cpu", "cuda:0"]', "different GPUs"),
        ("[denoise]\ncount = 0", r"\[denoise\] count is 0; it must be a number from 1 to 64"),
        ("[denoise]\ncount = true", "count is True"),
        ('[denoise]\nslots = "8"', "slots is '8'"),
        ("[prompt]\nslots = 8", r"\[prompt\] holds no sessions"),
        ("[orchestrator]\ncount = 2", r"\[orchestrator\] runs once"),
        ("[denoise]\nmax_sessions = 2", r"\[denoise\] max_sessions is not known; known: devices,"),
        ('[denoise]\ndevice = "cpu"', "device is not known"),
        ('[denoise]\ndtype = "int8"', r"\[denoise\] dtype is 'int8'; it must be one of float32"),
        (
            "[orchestrator]\nmax_sessions = 9\n[denoise]\ncount = 2\nslots = 4",
            r"\[denoise\] has 8 slots in 2 instances; max_sessions of \[orchestrator\] is 9",
        ),
        (
            '[denoise]\npreset = "window15"',
            r"\[orchestrator\] has preset 'fast', \[denoise\] 'window15'; both need the same",
        ),
        ("[orchestrator]\nmax_area = 6144", r"\[denoise\] 0; both need the same"),
    ],
)
def test_what_cannot_be_used_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(PlacementError, match=sentence):
        placement.parse(text)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlacementError, match=r"none\.toml cannot be read"):
        placement.load(tmp_path / "none.toml")


@pytest.mark.parametrize(("kind", "device"), [("GPU", "cuda:2"), ("CPU", "cpu")])
def test_an_instance_computes_on_its_own_gpu(kind: str, device: str) -> None:
    arguments = {
        "model_config": '{"parameters": {"device": {"string_value": "cpu"}}}',
        "model_instance_kind": kind,
        "model_instance_device_id": "2",
    }
    assert instance_settings(arguments).device == device


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_render_a_whole_repository(path: Path, tmp_path: Path) -> None:
    arguments = ["--placement", str(path), "--out", str(tmp_path)]
    result = CliRunner().invoke(render.main, arguments)
    assert result.exit_code == 0, result.output
    for model in MODELS:
        assert (tmp_path / model.name / "config.pbtxt").is_file()
        code = Path(model.name, "1", "model.py")
        assert (tmp_path / code).read_bytes() == (render.REPOSITORY / code).read_bytes()
    assert CliRunner().invoke(render.main, [*arguments, "--check"]).exit_code == 0


@pytest.mark.parametrize(("name", "gpus"), [("1-gpu", 1), ("2-gpus", 2), ("4-gpus", 4)])
def test_the_examples_use_every_gpu(name: str, gpus: int) -> None:
    (path,) = (path for path in EXAMPLES if path.stem == name)
    places = placement.load(path)
    assert {gpu for place in places.values() for gpu in place.gpus} == set(range(gpus))
    assert all(places[name].gpus for name in ("condition", "denoise", "decode"))
    assert Settings.load(places[ORCHESTRATOR.name].settings, {}).max_sessions >= 1


def test_a_placement_needs_a_folder_to_go_to() -> None:
    result = CliRunner().invoke(render.main, ["--placement", str(EXAMPLES[0])])
    assert result.exit_code == 2
    assert "--placement needs --out" in result.stderr


def test_a_placement_that_cannot_be_used_leaves_nothing(tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text("[denoise]\ncount = 0\n")
    out = tmp_path / "out"
    result = CliRunner().invoke(render.main, ["--placement", str(bad), "--out", str(out)])
    assert result.exit_code == 1
    assert "count is 0" in result.stderr
    assert not out.exists()
