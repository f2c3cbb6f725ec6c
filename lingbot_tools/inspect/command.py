"""The command `lingbot-world inspect`: an entry point, see pyproject.toml.

The help of `lingbot-world` imports this module, so torch is imported only when the command runs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
from lingbot_client.controls import parse_area

FILE = click.Path(path_type=Path)


@click.command()
@click.argument("checkpoint", type=FILE)
@click.option("--companions", type=FILE, help="VAE, text encoder, tokenizer; if not in CHECKPOINT.")
@click.option("--gpu-memory", help="Of the GPU that is to serve it, such as 80GiB.")
@click.option("--size-area", default="832x480", show_default=True, help="As for play.")
@click.option("--window", type=click.IntRange(3), help="Latent frames kept; else 3 a chunk.")
@click.option("--chunks", type=click.IntRange(1), default=7, show_default=True)
@click.option("--dtype", default="bfloat16", show_default=True, help="Of the transformer.")
@click.option("--vae-dtype", default="float32", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON, in bytes.")
def inspect(
    checkpoint: Path, companions: Path | None, size_area: str, as_json: bool, **options: Any
) -> None:
    """Say what a folder of weights holds, what it takes, and how many sessions fit a GPU.

    Exit code 1 where a part is missing. This needs the packages of the server.
    """
    try:
        from lingbot_tools.inspect.checkpoint import inspect_for
        from lingbot_tools.inspect.report import lines
    except ImportError as error:
        raise click.ClickException(f"inspect needs the server's packages: {error}") from None
    try:
        area = parse_area(size_area)
        inspection = inspect_for(checkpoint, companions or checkpoint, area=area, **options)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    text = json.dumps(inspection.to_dict(), indent=2) if as_json else "\n".join(lines(inspection))
    click.echo(text)
    if inspection.missing:
        sys.exit(1)
