"""`python -m lingbot_tools.bench`, which `scripts/bench` runs."""

from __future__ import annotations

import os
from importlib import import_module

import click

# gRPC complains on stderr about every program that is started beside its threads.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

COMMANDS = {
    "latency": "latency_command",
    "overhead": "overhead",
    "sessions": "sessions",
    "load-test": "load_command",
    "dit": "dit",
}
"""The module of this package that has the command, by its name."""


class LazyGroup(click.Group):
    """Imports a command's module only when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = import_module(f"lingbot_tools.bench.{COMMANDS[name]}").command
        return command


@click.group(cls=LazyGroup, context_settings={"show_default": True})
def main() -> None:
    """Measure the service; every report says what it ran on and what was simulated."""


if __name__ == "__main__":
    main(prog_name="scripts/bench")
