from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from lingbot_triton.protocol import ModelSpec, TensorSpec
from lingbot_triton.stage import DECODE_STAGE, MODELS, STAGES
from lingbot_triton.triton import render

SMALL = ModelSpec(
    "small",
    "an example",
    inputs=(
        TensorSpec("text", "BYTES", (1,), "words", optional=True),
        TensorSpec("x", "FP32", (-1, 4), "numbers", optional=False),
    ),
    outputs=(TensorSpec("y", "UINT8", (-1,), "bytes"),),
    sequence_slots=5,
    idle_seconds=2,
    decoupled=True,
)

SMALL_CONFIG = """\
# Rendered from lingbot_triton/protocol.py by scripts/render-configs; edit that instead.
# small: an example.
name: "small"
backend: "python"
max_batch_size: 0
input [
  # words
  { name: "text" data_type: TYPE_STRING dims: [ 1 ] optional: true },
  # numbers
  { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] }
]
output [
  # bytes
  { name: "y" data_type: TYPE_UINT8 dims: [ -1 ] }
]
sequence_batching {
  max_sequence_idle_microseconds: 2000000
  oldest { max_candidate_sequences: 5 }
}
model_transaction_policy { decoupled: true }
instance_group [ { count: 1 kind: KIND_CPU } ]
parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value: { string_value: "yes" } }
"""


def test_a_model_is_rendered_as_triton_reads_it() -> None:
    assert render.render(SMALL) == SMALL_CONFIG


def test_the_orchestrator_tells_clients_which_models_it_calls() -> None:
    names = ",".join(stage.name for stage in STAGES)
    line = f'parameters {{ key: "stages" value: {{ string_value: "{names}" }} }}'
    assert [line in render.render(model) for model in MODELS] == [True] + [False] * len(STAGES)


def test_no_model_is_cached_by_triton() -> None:
    """Its response cache turns a refusal that is asked for again into an empty success."""
    assert [model.name for model in MODELS if "cache" in render.render(model)] == []


def test_writing_changes_only_what_is_stale(tmp_path: Path) -> None:
    everything = [model.name for model in MODELS]
    assert render.write(tmp_path) == everything
    assert render.stale(tmp_path) == []
    decode = tmp_path / DECODE_STAGE.name / "config.pbtxt"
    decode.write_text(decode.read_text() + "# edited by hand\n")
    assert render.stale(tmp_path) == [DECODE_STAGE.name]
    assert render.write(tmp_path) == [DECODE_STAGE.name]
    assert decode.read_text() == render.render(DECODE_STAGE)


def test_check_names_the_stale_models_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    render.write(tmp_path)
    (tmp_path / "prompt" / "config.pbtxt").unlink()
    monkeypatch.setattr(render, "REPOSITORY", tmp_path)
    result = CliRunner().invoke(render.main, ["--check"])
    assert result.exit_code == 1
    assert result.stderr == "stale configuration of prompt; run scripts/render-configs\n"


def test_the_checked_in_configurations_are_up_to_date() -> None:
    assert render.stale(render.REPOSITORY) == []
