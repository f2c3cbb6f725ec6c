"""Sessions at a person's pace, measured from here: what `lingbot-world bench` runs and shows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from lingbot_client.client import WorldClient
from lingbot_client.figures import DISTRIBUTIONS, ChunkSample, Distribution, Figures, figures, plain
from lingbot_client.pace import Gate, Pace, Played, play_session
from lingbot_client.picture import Picture


@dataclass(frozen=True)
class Load:
    """What to put on a server: sessions that start together, at one pace."""

    image: Picture
    prompt: str
    keys: Sequence[str]
    sessions: int
    pace: Pace
    warm_up: int
    """Chunks left out at the start of every session."""
    options: dict[str, Any]


@dataclass(frozen=True)
class Measurement:
    """What came of a load."""

    load: Load
    played: list[Played]

    @property
    def figures(self) -> Figures:
        return figures([one.samples for one in self.played], self.load.warm_up)

    @property
    def errors(self) -> list[str]:
        """What went wrong, each sentence once."""
        return sorted({error for one in self.played for error in one.errors})

    def to_json(self) -> str:
        document = {
            "sessions": self.load.sessions,
            "pace": asdict(self.load.pace),
            "warm_up": self.load.warm_up,
            "options": self.load.options,
            "ready": self.played[0].ready,
            "figures": asdict(self.figures),
            "errors": self.errors,
            "chunks": [[asdict(sample) for sample in one.samples] for one in self.played],
        }
        return json.dumps(plain(document), indent=1) + "\n"


async def measure(
    client: WorldClient, load: Load, on_chunk: Callable[[ChunkSample], None]
) -> Measurement:
    """Play all sessions of a load at the same time, each with a seed of its own; close `client`."""
    gate = Gate(load.sessions)
    seed = int(load.options.get("seed", 42))
    playing = []
    for number in range(load.sessions):
        options = {"chunk_count": load.pace.chunks, **load.options, "seed": seed + number}
        session = client.open_session(load.image, load.prompt, **options)
        playing.append(play_session(session, load.keys, load.pace, gate, on_chunk=on_chunk))
    async with client:
        return Measurement(load, list(await asyncio.gather(*playing)))


def table(measurement: Measurement) -> Table:
    """Every figure of a measurement."""
    load, found = measurement.load, measurement.figures
    pace = "one control ahead" if load.pace.ahead else f"{load.pace.think:g} s to think"
    shown = Table(
        title=f"{load.sessions} sessions, {pace}: {found.chunks} chunks, {found.failures} failed",
        caption=f"weighted compute FPS {found.compute_fps:.2f}, "
        f"real-time factor {found.real_time_factor:.2f}; a failed chunk counts as infinitely late",
    )
    for name in ("milliseconds", "clock"):
        shown.add_column(name)
    for name in ("mean", "P50", "P90", "P99"):
        shown.add_column(name, justify="right")
    for title, clock, field in DISTRIBUTIONS:
        values: Distribution = getattr(found, field)
        numbers = (values.mean, values.p50, values.p90, values.p99)
        shown.add_row(title, clock, *(f"{number:.1f}" for number in numbers))
    return shown
