"""`scripts/regress CHECKPOINT EXPECTED`: this implementation against expectations."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click
import numpy as np
from lingbot_client import WorldError
from safetensors.numpy import save_file

from lingbot_tools.regression.compare import play_on_stages
from lingbot_tools.regression.expectations import ExpectationError, Expectations
from lingbot_tools.regression.play import Stages, conditions_of
from lingbot_tools.regression.server import play_on_server
from lingbot_triton.errors import WorldError as StageError
from lingbot_triton.settings import Settings, SettingsError
from lingbot_triton.triton.installation import InstallationError
from lingbot_triton.triton.secret import VARIABLE as SECRET_VARIABLE
from lingbot_triton.triton.server import ServerConfig, ServerError, ServerProcess
from lingbot_triton.world.errors import CheckpointError

UNUSABLE = (
    *(CheckpointError, ExpectationError, SettingsError, OSError),
    *(WorldError, StageError, ServerError, InstallationError),
)
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.argument("checkpoint", type=_FOLDER)
@click.argument("expected", type=_FOLDER)
@click.option("--url", help="gRPC address of a server to play on; it must serve CHECKPOINT.")
@click.option("--server", is_flag=True, help="Start a server for CHECKPOINT and play on it too.")
@click.option("--record", "recording", is_flag=True, help="Only keep in EXPECTED what comes out.")
def main(checkpoint: Path, expected: Path, url: str | None, server: bool, recording: bool) -> None:
    """Play the session in EXPECTED with CHECKPOINT and compare all that EXPECTED holds.

    It is played on the stages in this process, and with --url or --server through a server too:
    there is a JSON object for each. Device, number format and threads come from the LINGBOT_*
    variables; with LINGBOT_SECRET set to the server's, conditions, flows and latents are compared
    there as well as frames.
    Exit code 1 where a difference is beyond its tolerance, 2 where nothing could be compared.
    """
    try:
        if recording:
            click.echo(f"wrote {record(checkpoint, expected, Settings.load())}")
            return
        reports = [play_on_stages(checkpoint, expected, Settings.load())]
        if url is not None:
            reports.append(play_on_server(url, expected, os.environ.get(SECRET_VARIABLE)))
        if server:
            environment = {"LINGBOT_CHECKPOINT": str(checkpoint.resolve())}
            with ServerProcess(ServerConfig(environment=environment, start_seconds=3600)) as own:
                reports.append(play_on_server(own.grpc, expected, own.secret))
    except UNUSABLE as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    for report in reports:
        click.echo(report.to_json())
    sys.exit(not all(report.ok for report in reports))


def record(checkpoint: Path, expected: Path, settings: Settings) -> Path:
    """Play the session that `expected` describes and keep what came out; returns the file.

    These are expectations for later changes of this implementation: session.json then says that it
    made them. Raises CheckpointError or ExpectationError.
    """
    expectations = Expectations.load(expected)
    stages = Stages.load(settings.replace(checkpoint=str(checkpoint)))
    conditions = conditions_of(stages.condition, expectations)
    played = stages.play(expectations, expectations.full, conditions)
    tensors = {"condition": np.concatenate(conditions, axis=1)}
    tensors |= {"latents": played.latents, "frames_u8": played.frames}
    path = expected / f"{expectations.full.file}.safetensors"
    save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, path)
    session = expectations.session | {"made_by": "lingbot-triton"}
    (expected / "session.json").write_text(json.dumps(session, indent=1) + "\n")
    return path


if __name__ == "__main__":
    main()
