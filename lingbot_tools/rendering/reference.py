"""Generates `docs/protocol.md` from what the code itself goes by: `scripts/render-docs` writes it.

Tensors come from `protocol`, options from `options`, codes from `errors`; the limits of an option
are found by asking for something far beyond them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import click
from lingbot_client.errors import BY_CODE as CLIENT_ERRORS

from lingbot_tools.rendering.reference_text import (
    CLOSED_INFO,
    CODES,
    FRAMES_INFO,
    MILLISECONDS,
    OPTIONS,
    READY_INFO,
    SECTIONS,
    STATUS,
)
from lingbot_triton import errors, protocol
from lingbot_triton.errors import BadRequest
from lingbot_triton.options import SessionOptions
from lingbot_triton.protocol import TensorSpec
from lingbot_triton.stage import STAGES
from lingbot_triton.world.family import WORLD_FAST

PATH = Path(__file__).resolve().parents[2] / "docs" / "protocol.md"
BEYOND = 10**30


def render() -> str:
    """The text of `docs/protocol.md`."""
    tables = {
        "inputs": tensor_table(protocol.PUBLIC_INPUTS),
        "outputs": tensor_table(protocol.PUBLIC_OUTPUTS),
        "options": option_table(),
        "status": table(("status", "meaning"), STATUS.items()),
        "codes": code_table(),
        "ready": table(("key", "value"), READY_INFO.items()),
        "frames": table(("key", "value"), FRAMES_INFO.items()),
        "milliseconds": table(("key", "value"), MILLISECONDS.items()),
        "closed": table(("key", "value"), CLOSED_INFO.items()),
        "workers": worker_tables(),
    }
    return SECTIONS.substitute(tables)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column is code."""
    lines = [head, ["---"] * len(head), *([f"`{first}`", *rest] for first, *rest in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tensor_table(tensors: Iterable[TensorSpec]) -> str:
    rows = [(spec.name, f"{spec.dtype} {list(spec.shape)}", spec.description) for spec in tensors]
    return table(("tensor", "type and shape", "holds"), rows)


def option_table() -> str:
    kinds = get_type_hints(SessionOptions)
    rows = []
    for name, field in SessionOptions.model_fields.items():
        default = "null" if field.default is None else str(field.default).lower()
        rows.append((name, kind_name(kinds[name]), default, limits(name)))
    texts = [OPTIONS[name] for name, *_ in rows]
    head = ("option", "type", "default", "limits", "meaning")
    return table(head, [(*row, text) for row, text in zip(rows, texts, strict=True)])


def kind_name(kind: Any) -> str:
    """A type as JSON has it."""
    text = getattr(kind, "__name__", str(kind)) if isinstance(kind, type) else str(kind)
    count = text.count("float") + text.count("int")
    if "tuple" in text:
        return f"{count} numbers"
    return {"bool": "boolean", "float": "number"}.get(text, "whole number")


def limits(name: str) -> str:
    """Smallest and largest value of a numeric option, as its own refusal tells them."""
    kind = get_type_hints(SessionOptions)[name]
    if kind is bool or "tuple" in str(kind):
        return ""
    needed = {"kv_window_frames": 1000} if name == "kv_sink_frames" else {}
    values = str({**needed, name: -BEYOND}).replace("'", '"')
    try:
        SessionOptions.parse(values).check_chunk(WORLD_FAST.chunk_latent_frames)
    except BadRequest as error:
        found = re.search(r"between (\S+) and (\S+)$", str(error))
        if found is not None:
            return f"{found[1]} to {found[2]}"
        raise
    raise AssertionError(f"option {name} takes {-BEYOND}")


def code_table() -> str:
    """Error codes, and what they mean for the session, as the client knows it."""
    ends = {code: "yes" if CLIENT_ERRORS[code].ends_session else "" for code in errors.BY_CODE}
    rows = [(code, CODES[code], ends[code]) for code in errors.BY_CODE]
    return table(("code", "meaning", "ends the session"), rows)


def worker_tables() -> str:
    parts = []
    for spec in STAGES:
        inputs = ", ".join(f"`{tensor.name}`" for tensor in spec.inputs)
        outputs = ", ".join(f"`{tensor.name}`" for tensor in spec.outputs)
        parts.append((spec.name, spec.description, inputs, outputs))
    return table(("model", "does", "inputs", "outputs"), parts)


@click.command()
@click.option("--check", is_flag=True, help="Only say whether the file is up to date.")
def main(check: bool) -> None:
    """Write docs/protocol.md from the code."""
    text = render()
    if PATH.is_file() and PATH.read_text() == text:
        click.echo("docs/protocol.md is up to date")
    elif check:
        click.echo("docs/protocol.md is stale; run scripts/render-docs", err=True)
        sys.exit(1)
    else:
        PATH.write_text(text)
        click.echo("docs/protocol.md was written")


if __name__ == "__main__":
    main(prog_name="scripts/render-docs")
