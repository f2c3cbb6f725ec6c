"""`python -m lingbot_triton.regress CHECKPOINT EXPECTED`: this implementation against expectations.

Prints one JSON object and ends with status 1 where a difference is beyond its tolerance, 2 where
the checkpoint or the expectations cannot be used.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from lingbot_triton.regression.expectations import ExpectationError
from lingbot_triton.regression.stages import play_on_stages
from lingbot_triton.settings import Settings
from lingbot_triton.world.errors import CheckpointError

__all__ = ["main", "play_on_stages"]

_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.argument("checkpoint", type=_FOLDER)
@click.argument("expected", type=_FOLDER)
def main(checkpoint: Path, expected: Path) -> None:
    """Play the session in EXPECTED with CHECKPOINT and compare all that EXPECTED holds.

    Device, number format and threads come from the LINGBOT_* variables.
    """
    try:
        report = play_on_stages(checkpoint, expected, Settings.load())
    except (CheckpointError, ExpectationError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    click.echo(report.to_json())
    sys.exit(0 if report.ok else 1)


if __name__ == "__main__":
    main()
