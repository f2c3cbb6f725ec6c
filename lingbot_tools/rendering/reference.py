"""Tables in the documentation that the code itself determines: `scripts/render-docs` writes them.

A document has them between `<!-- rendered: NAME -->` and `<!-- end -->`; all else is by hand.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from lingbot_triton import protocol
from lingbot_triton.options import SessionOptions
from lingbot_triton.protocol import TensorSpec
from lingbot_triton.schema import JsonSchema
from lingbot_triton.settings import EMBEDDED_CHECKPOINT, Settings, variable_of
from lingbot_triton.stage import STAGES
from lingbot_triton.world.family import WORLD_FAST

DOCS = Path(__file__).resolve().parents[2] / "docs"
DOCUMENTS = (DOCS / "protocol.md", DOCS / "operations.md")
BLOCK = re.compile(r"<!-- rendered: (\S+) -->\n.*?<!-- end -->", re.DOTALL)
UNITS = {2**20: "MiB", 2**10: "KiB"}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column is code."""
    lines = [head, ["---"] * len(head), *([f"`{first}`", *rest] for first, *rest in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tensor_table(tensors: Iterable[TensorSpec]) -> str:
    rows = [(spec.name, f"{spec.dtype} {list(spec.shape)}", spec.description) for spec in tensors]
    return table(("tensor", "type and shape", "holds"), rows)


def stage_table() -> str:
    rows = []
    for stage in STAGES:
        inputs = ", ".join(f"`{tensor.name}`" for tensor in stage.inputs)
        outputs = ", ".join(f"`{tensor.name}`" for tensor in stage.outputs)
        rows.append((stage.name, stage.description, inputs, outputs))
    return table(("model", "does", "inputs", "outputs"), rows)


def option_table() -> str:
    rows = [
        (
            name,
            json_type(schema),
            json.dumps(schema["default"]),
            limits(name),
            schema["description"],
        )
        for name, schema in SessionOptions.properties().items()
    ]
    return table(("option", "type", "default", "limits", "meaning"), rows)


def json_type(schema: JsonSchema) -> str:
    """A field's JSON type in words."""
    if schema["type"] == "array":
        return f"{schema['maxItems']} numbers"
    return "whole number" if schema["type"] == "integer" else str(schema["type"])


def limits(name: str) -> str:
    """Smallest and largest value of a numeric option, empty for any other."""
    schema = SessionOptions.properties()[name]
    of_the_model = SessionOptions().chunk_limits(WORLD_FAST.chunk_latent_frames)
    low, high = of_the_model.get(name, (schema.get("minimum"), schema.get("maximum")))
    return "" if low is None else f"{low} to {high}"


def setting_table() -> str:
    rows = [
        (variable_of(name), setting_default(name, schema["default"]), schema["description"])
        for name, schema in Settings.properties().items()
    ]
    return table(("variable", "default", "meaning"), rows)


def setting_default(name: str, value: Any) -> str:
    """A setting's default as a person would write it."""
    match value:
        case bool():
            return f"`{value}`".lower()
        case int() if name.endswith("_bytes") and value:
            unit = next(unit for unit in UNITS if value % unit == 0)
            return f"{value // unit} {UNITS[unit]}"
        case int():
            return f"{value:,}".replace(",", " ")
        case float():
            return f"{value:g}"
        case "":
            return ""
        case _:
            return "the tiny one" if value == str(EMBEDDED_CHECKPOINT) else f"`{value}`"


TABLES: dict[str, Callable[[], str]] = {
    "inputs": lambda: tensor_table(protocol.PUBLIC_INPUTS),
    "outputs": lambda: tensor_table(protocol.PUBLIC_OUTPUTS),
    "options": option_table,
    "stages": stage_table,
    "settings": setting_table,
}


def render(text: str) -> str:
    """A document with its tables as the code has them; raises KeyError for an unknown one."""
    return BLOCK.sub(
        lambda block: f"<!-- rendered: {block[1]} -->\n\n{TABLES[block[1]]()}\n\n<!-- end -->", text
    )


@click.command()
@click.option("--check", is_flag=True, help="Only say whether the tables are up to date.")
def main(check: bool) -> None:
    """Write the rendered tables of docs/ from the code."""
    stale = False
    for path in DOCUMENTS:
        name, text = f"docs/{path.name}", path.read_text()
        rendered = render(text)
        if rendered == text:
            click.echo(f"{name} is up to date")
        elif check:
            click.echo(f"{name} is stale; run scripts/render-docs", err=True)
            stale = True
        else:
            path.write_text(rendered)
            click.echo(f"{name} was written")
    sys.exit(stale)


if __name__ == "__main__":
    main(prog_name="scripts/render-docs")
