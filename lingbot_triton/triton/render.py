"""Render the `config.pbtxt` of every model from `lingbot_triton.protocol` and a placement."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import click

from lingbot_triton.protocol import ORCHESTRATOR, ModelSpec, TensorSpec
from lingbot_triton.stage import MODELS, STAGES
from lingbot_triton.triton.placement import DEFAULT, Place, Placement, PlacementError, load

HEADER = "# Rendered from lingbot_triton/protocol.py by scripts/render-configs; edit that instead."
_STAGE_NAMES = ",".join(stage.name for stage in STAGES)
"""What `lingbot-world doctor` asks for: the models that must be there besides the orchestrator."""
REPOSITORY = Path(__file__).resolve().parents[2] / "model_repository"


def render(model: ModelSpec, place: Place = DEFAULT) -> str:
    """The text of the model's `config.pbtxt` where it is placed at `place`."""
    blocks = [
        HEADER,
        f"# {model.name}: {model.description}.",
        f'name: "{model.name}"',
        'backend: "python"',
        "max_batch_size: 0",
        *_tensors("input", model.inputs),
        *_tensors("output", model.outputs),
        *_scheduling(model, place.slots or model.sequence_slots),
        _instances(place),
        _parameter("FORCE_CPU_ONLY_INPUT_TENSORS", "yes"),
        *([_parameter("stages", _STAGE_NAMES)] if model is ORCHESTRATOR else []),
        *(_parameter(name, value) for name, value in place.settings.items()),
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
            f"  # {tensor.description}",
            f'  {{ name: "{tensor.name}" data_type: TYPE_{kind} dims: [ {dims} ]{optional} }}{end}',
        ]
    return [*lines, "]"]


def _instances(place: Place) -> str:
    """On no GPU, KIND_CPU only says where Triton's tensors are: a stage computes on its `device`.

    KIND_AUTO would start on every machine too, but with an instance on each of its GPUs.
    """
    gpus = ", ".join(map(str, place.gpus))
    kind = f"kind: KIND_GPU gpus: [ {gpus} ]" if gpus else "kind: KIND_CPU"
    return f"instance_group [ {{ count: {place.count} {kind} }} ]"


def _parameter(name: str, value: str) -> str:
    text = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'parameters {{ key: "{name}" value: {{ string_value: "{text}" }} }}'


def _scheduling(model: ModelSpec, slots: int) -> list[str]:
    lines = []
    if model.sequence_slots:
        lines += [
            "sequence_batching {",
            f"  max_sequence_idle_microseconds: {model.idle_seconds * 1_000_000}",
            f"  oldest {{ max_candidate_sequences: {slots} }}",
            "}",
        ]
    if model.decoupled:
        lines.append("model_transaction_policy { decoupled: true }")
    return lines


def stale(repository: Path, placement: Placement | None = None) -> list[str]:
    """Names of the models whose `config.pbtxt` is missing or differs from its rendering."""
    return [
        model.name
        for model in MODELS
        if not (path := repository / model.name / "config.pbtxt").is_file()
        or path.read_text() != _placed(model, placement)
    ]


def write(repository: Path, placement: Placement | None = None) -> list[str]:
    """Write the configurations that are stale, each beside its model's code.

    Returns the names of their models.
    """
    changed = stale(repository, placement)
    for model in MODELS:
        folder = repository / model.name
        code = folder / "1" / "model.py"
        if not code.is_file():
            code.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(REPOSITORY / model.name / "1" / "model.py", code)
        if model.name in changed:
            (folder / "config.pbtxt").write_text(_placed(model, placement))
    return changed


def _placed(model: ModelSpec, placement: Placement | None) -> str:
    return render(model, (placement or {}).get(model.name, DEFAULT))


FILE = click.Path(path_type=Path)


@click.command()
@click.option("--placement", "file", type=FILE, help="TOML file that says where models run.")
@click.option("--out", type=FILE, help="Model repository to write.  [default: the project's own]")
@click.option("--check", is_flag=True, help="Only say whether the files are up to date.")
def main(file: Path | None, out: Path | None, check: bool) -> None:
    """Write the models' config.pbtxt, as lingbot_triton/protocol.py and a placement say.

    With --out they are written, beside the models' code, into a model repository of their own.
    """
    if file is not None and out is None:
        raise click.UsageError("--placement needs --out: a folder, or model_repository itself")
    repository = REPOSITORY if out is None else out
    try:
        placement = None if file is None else load(file)
    except PlacementError as error:
        raise click.ClickException(str(error)) from None
    if not check:
        changed = write(repository, placement)
        click.echo(f"rendered: {', '.join(changed) or 'nothing to change'}")
        return
    if changed := stale(repository, placement):
        click.echo(
            f"stale configuration of {', '.join(changed)}; run scripts/render-configs", err=True
        )
        sys.exit(1)


if __name__ == "__main__":
    main()
