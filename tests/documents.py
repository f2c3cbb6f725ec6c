"""Reading the project's own documentation."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
Table = dict[str, list[str]]
"""A table's rows: the other cells by the first one, which has no backquotes here."""


def section(document: str, heading: str) -> str:
    """What stands under a heading of a document, up to the next heading of any level."""
    text = (ROOT / document).read_text()
    match = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", text, re.M | re.S)
    assert match is not None, f"{document} has no heading {heading!r}"
    return match[1]


def tables(document: str, heading: str) -> list[Table]:
    """The tables under a heading, in order."""
    lines = section(document, heading).splitlines()
    groups = (list(rows) for is_row, rows in groupby(lines, _is_row) if is_row)
    return [dict(map(_cells, rows[2:])) for rows in groups]


def _is_row(line: str) -> bool:
    return line.startswith("|")


def _cells(row: str) -> tuple[str, list[str]]:
    first, *rest = (cell.strip() for cell in row.strip("|").split(" |"))
    return first.strip("`"), rest
