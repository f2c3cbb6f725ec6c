"""Commands that other installed packages add to `lingbot-world`."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

import click

GROUP = "lingbot_world.commands"
"""Entry points of this group are click commands; the name is what one types."""


class PluginGroup(click.Group):
    """A group of commands that finds further ones among the entry points of `GROUP`.

    A command's module is imported when the command is called or listed in the help, so it should
    import what is slow only when it runs. Where its package is not installed, the help leaves the
    command out, and calling it says what is missing.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.commands, *filter(_is_installed, _plugins())})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        if command is not None or cmd_name not in (plugins := _plugins()):
            return command
        try:
            return _load(plugins[cmd_name])
        except ImportError as error:
            message = f"{cmd_name} needs a package that is not installed: {error}"
            raise click.ClickException(message) from None


def _plugins() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _is_installed(name: str) -> bool:
    try:
        _load(_plugins()[name])
    except ImportError:
        return False
    return True


def _load(entry: EntryPoint) -> click.Command:
    command = entry.load()
    assert isinstance(command, click.Command), f"{entry.value} is not a click command"
    return command
