"""The check's results as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def chunk_times(report: dict[str, Any], window: str) -> dict[str, float]:
    """Milliseconds for 12 frames: what a person waits, what is beside that, and all in line."""
    session, vae = report["sessions"][window], report["vae"]["float32"]
    latent, commit, frame = session["latent_ms"], session["commit_ms"], vae["decode_frame_ms"]
    return {
        "control to latent": latent,
        "control to first frames": latent + frame,
        "control to last frame": latent + 3 * frame,
        "commit": commit,
        "latent and commit": latent + commit,
        "whole chunk in line": latent + 3 * frame + commit,
        "condition, prefetched": vae["encode_chunk_ms"],
    }


def table(report: dict[str, Any]) -> str:
    """All results but those of single chunks: a table of each section that has rows."""
    lines = []
    for section, content in report.items():
        if section == "chunks":
            continue
        if content and isinstance(content, dict) and isinstance(next(iter(content.values())), dict):
            content = [{"": name, **row} for name, row in content.items()]
        if not isinstance(content, list):
            lines.append(f"{section}: {_cell(content)}")
        elif content and isinstance(content[0], dict):
            lines += ["", f"{section}:", *_columns(content), ""]
        else:
            lines += [f"{section.removesuffix('s')}: {item}" for item in content]
    times = [{"12 frames, ms": name, **chunk_times(report, name)} for name in report["sessions"]]
    return "\n".join([*lines, "", *_columns(times)])


def _columns(rows: Sequence[dict[str, Any]]) -> list[str]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_cell(item)}" for name, item in value.items())
    if value is None:
        return "-"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
