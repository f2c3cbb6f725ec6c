"""`scripts/serve`: start the service on this machine and keep it until told to stop."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from lingbot_triton.settings import PREFIX, Settings, SettingsError
from lingbot_triton.simulated.profiles import PROFILES
from lingbot_triton.triton.installation import InstallationError
from lingbot_triton.triton.render import REPOSITORY
from lingbot_triton.triton.server import ServerConfig, ServerError, ServerProcess
from lingbot_triton.triton.supervisor import keep_serving
from lingbot_triton.triton.system import port_is_free

LOG_FLAGS = {
    "error": ("--log-info=false", "--log-warning=false"),
    "warning": ("--log-info=false",),
    "info": (),
    "debug": ("--log-verbose=1",),
}
FOLDER = click.Path(path_type=Path)


@click.command(context_settings={"show_default": True})
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--http-port", default=8000, help="0 takes a free one.")
@click.option("--grpc-port", default=8001, help="0 takes a free one.")
@click.option("--metrics-port", default=8002, help="0 takes a free one.")
@click.option("--checkpoint", type=FOLDER, help="Folder of weights.  [default: the tiny ones]")
@click.option(
    "--device", help="Where the models compute, such as cuda:0.  [default: a GPU, or cpu]"
)
@click.option("--dtype", help="float32, bfloat16 or float16.  [default: float32]")
@click.option("--max-sessions", type=int, help="Sessions at a time.  [default: 8]")
@click.option("--prefetch-depth", type=int, help="Conditions made ahead.  [default: 2]")
@click.option(
    "--simulated", type=click.Choice(sorted(PROFILES)), help="Stages that only take this time."
)
@click.option("--scale", "simulated_scale", type=float, help="Factor on the simulated times.")
@click.option("--model-repository", type=FOLDER, help="Models to serve.  [default: the project's]")
@click.option("--tritonserver", type=FOLDER, help="Program to start.  [default: it is looked for]")
@click.option(
    "--start-timeout",
    type=click.FloatRange(0, min_open=True),
    default=3600.0,
    help="Seconds to load all models in.",
)
@click.option("--log-level", type=click.Choice(list(LOG_FLAGS)), default="warning")
@click.option("-v", "--verbose", is_flag=True, help="The same as --log-level info.")
@click.argument("triton_arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- TRITON_OPTIONS]")
def main(
    host: str,
    http_port: int,
    grpc_port: int,
    metrics_port: int,
    model_repository: Path | None,
    tritonserver: Path | None,
    start_timeout: float,
    log_level: str,
    verbose: bool,
    triton_arguments: tuple[str, ...],
    **settings_options: Any,
) -> None:
    """Serve LingBot-World-Fast until Ctrl-C. Every LINGBOT_* variable holds here too."""
    environment = variables(settings_options)
    settings = load_settings(environment)
    if model_repository is not None and not model_repository.is_dir():
        raise click.ClickException(f"model repository {model_repository} is not a folder")
    check_ports(host, {"http": http_port, "grpc": grpc_port, "metrics": metrics_port})
    config = ServerConfig(
        repository=model_repository or REPOSITORY,
        host=host,
        http_port=http_port,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        environment=environment,
        tritonserver=tritonserver,
        start_seconds=start_timeout,
        echo=verbose or log_level in ("info", "debug"),
        arguments=(*LOG_FLAGS["info" if verbose else log_level], *triton_arguments),
    )
    try:
        serve(config, settings)
    except (InstallationError, ServerError) as error:
        raise click.ClickException(str(error)) from None


def variables(options: dict[str, Any]) -> dict[str, str]:
    """Options of the command line as LINGBOT_* variables."""
    return {
        PREFIX + name.upper(): str(value.resolve() if isinstance(value, Path) else value)
        for name, value in options.items()
        if value is not None
    }


def load_settings(environment: dict[str, str]) -> Settings:
    """The settings the models will find; raises ClickException for what they would refuse."""
    try:
        settings = Settings.load(environ={**os.environ, **environment})
    except SettingsError as error:
        raise click.ClickException(str(error)) from None
    if not Path(settings.checkpoint).is_dir():
        raise click.ClickException(f"checkpoint {settings.checkpoint} is not a folder")
    return settings


def check_ports(host: str, ports: dict[str, int]) -> None:
    """Raise ClickException, naming the option, for a port that cannot be listened on."""
    for name, port in ports.items():
        if port and not port_is_free(host, port):
            raise click.ClickException(
                f"port {port} of {host} cannot be listened on; choose another with --{name}-port"
            )


def serve(config: ServerConfig, settings: Settings) -> None:
    """Keep a server until SIGINT, SIGTERM or SIGHUP; raises ServerError where it fails for good.

    Its warnings are shown while it serves; what goes wrong in starting is in the error.
    """
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    with suppress(KeyboardInterrupt):
        keep_serving(config, lambda server: click.echo(ready_line(server, settings)))


def ready_line(server: ServerProcess, settings: Settings) -> str:
    if settings.simulated:
        what = f"simulated {settings.simulated} × {settings.simulated_scale:g}"
    else:
        what = f"checkpoint {'embedded' if settings.embedded else settings.checkpoint}"
    return f"ready: grpc {server.grpc} http {server.http} metrics {server.metrics} {what}"


if __name__ == "__main__":
    main(prog_name="scripts/serve")
