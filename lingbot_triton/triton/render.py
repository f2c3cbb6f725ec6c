"""Render the `config.pbtxt` of every model from `lingbot_triton.protocol`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from lingbot_triton.protocol import MODELS, ModelSpec, TensorSpec

HEADER = "# Rendered from lingbot_triton/protocol.py by scripts/render-configs; edit that instead."
REPOSITORY = Path(__file__).resolve().parents[2] / "model_repository"


def render(model: ModelSpec) -> str:
    """The text of the model's `config.pbtxt`."""
    blocks = [
        HEADER,
        f"# {model.name}: {model.text}.",
        f'name: "{model.name}"',
        'backend: "python"',
        "max_batch_size: 0",
        *_tensors("input", model.inputs),
        *_tensors("output", model.outputs),
        *_scheduling(model),
        # Where Triton puts tensors; where a stage computes is its `device` setting.
        "instance_group [ { count: 1 kind: KIND_CPU } ]",
        'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value: { string_value: "yes" } }',
    ]
    return "\n".join(blocks) + "\n"


def _tensors(direction: str, tensors: tuple[TensorSpec, ...]) -> list[str]:
    lines = [f"{direction} ["]
    for tensor in tensors:
        dims = ", ".join(map(str, tensor.shape))
        kind = "STRING" if tensor.dtype == "BYTES" else tensor.dtype
        optional = " optional: true" if direction == "input" and tensor.optional else ""
        end = "" if tensor is tensors[-1] else ","
        lines += [
            f"  # {tensor.text}",
            f'  {{ name: "{tensor.name}" data_type: TYPE_{kind} dims: [ {dims} ]{optional} }}{end}',
        ]
    return [*lines, "]"]


def _scheduling(model: ModelSpec) -> list[str]:
    lines = []
    if model.sequence_slots:
        lines += [
            "sequence_batching {",
            f"  max_sequence_idle_microseconds: {model.idle_seconds * 1_000_000}",
            f"  oldest {{ max_candidate_sequences: {model.sequence_slots} }}",
            "}",
        ]
    if model.decoupled:
        lines.append("model_transaction_policy { decoupled: true }")
    if model.response_cache:
        lines.append("response_cache { enable: true }")
    return lines


def stale(repository: Path) -> list[str]:
    """Names of the models whose `config.pbtxt` is missing or differs from its rendering."""
    return [
        model.name
        for model in MODELS
        if not (path := repository / model.name / "config.pbtxt").is_file()
        or path.read_text() != render(model)
    ]


def write(repository: Path) -> list[str]:
    """Write the configurations that are stale; returns the names of their models."""
    changed = stale(repository)
    for model in MODELS:
        if model.name in changed:
            path = repository / model.name / "config.pbtxt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(render(model))
    return changed


@click.command()
@click.option("--check", is_flag=True, help="Only say whether the files are up to date.")
def main(check: bool) -> None:
    """Write model_repository/*/config.pbtxt, as lingbot_triton/protocol.py describes them."""
    if not check:
        changed = write(REPOSITORY)
        click.echo(f"rendered: {', '.join(changed) or 'nothing to change'}")
        return
    if changed := stale(REPOSITORY):
        click.echo(
            f"stale configuration of {', '.join(changed)}; run scripts/render-configs", err=True
        )
        sys.exit(1)


if __name__ == "__main__":
    main()
