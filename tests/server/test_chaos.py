"""Order under stress: short chaotic runs, and the seeds that once found something."""

from __future__ import annotations

from collections import Counter

import pytest
from click.testing import CliRunner

from lingbot_tools.chaos import __main__ as command
from lingbot_tools.chaos.ledger import Violation


def tally(*options: str) -> set[str]:
    """What has happened in a run, in which nothing that was promised was broken."""
    result = CliRunner().invoke(command.main, options)
    assert result.exit_code == 0, result.output
    rows = (line.split("│") for line in result.stdout.splitlines() if line.startswith("│"))
    return {row[1].strip() for row in rows}


def test_chaos_breaks_no_promise() -> None:
    """This seed once found the orchestrator's memory corrupted, by a call to itself."""
    happened = tally("--seed=6", "--minutes=0.1", "--kill-every=0")
    responses = {"FRAMES", "CLOSED", "DUPLICATE", "OUT_OF_ORDER", "BAD_REQUEST", "NO_SESSION"}
    deeds = {"burst", "malformed", "foreign", "cut"}
    assert (responses | deeds) - happened == set()


def test_chaos_with_dying_workers() -> None:
    """This seed once found that the shared memory of killed workers was never removed."""
    happened = tally("--seed=3", "--minutes=0.134", "--kill-every=3")
    assert [what for what in happened if what.startswith("killed")] != []


def test_a_violation_is_told_with_its_seed_and_history(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(tally: Counter[str], seed: int, **options: object) -> None:
        tally["FRAMES"] = 8
        raise Violation("in life 3/7", "frame 9 came where 8 is next", "opening -> READY")

    monkeypatch.setattr(command, "run", run)
    result = CliRunner().invoke(command.main, ["--seed", "12"])
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0] == "seed 12"
    assert lines[-3:] == [
        "seed 12: VIOLATION in life 3/7",
        "  frame 9 came where 8 is next",
        "  opening -> READY",
    ]
