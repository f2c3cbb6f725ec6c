"""What was promised, with the measured value beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table


@dataclass(frozen=True)
class Bar:
    """A promise about one number. A number that could not be measured misses it."""

    text: str
    value: float
    bar: float
    at_least: bool = False
    unit: str = ""
    note: str = ""

    @property
    def met(self) -> bool:
        return self.value >= self.bar if self.at_least else self.value <= self.bar

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"met": self.met}


def bars_table(bars: Sequence[Bar]) -> Table:
    """One row per bar."""
    table = Table(title="bars", title_justify="left")
    table.add_column("what")
    table.add_column("measured", justify="right")
    table.add_column("bar", justify="right")
    table.add_column("")
    table.add_column("note")
    for bar in bars:
        sign = "≥" if bar.at_least else "≤"
        verdict = "[green]met[/]" if bar.met else "[red]missed[/]"
        limit = f"{sign} {bar.bar:g} {bar.unit}".strip()
        table.add_row(bar.text, f"{bar.value:.3f} {bar.unit}".strip(), limit, verdict, bar.note)
    return table
