"""Commands that other packages add to the command line by entry points."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import pytest
import tomllib
from click.testing import CliRunner
from lingbot_client.cli import main
from lingbot_client.plugins import GROUP

ROOT = Path(__file__).resolve().parents[3]

PLUGIN = """
import click

@click.command()
@click.argument("name")
def greet(name: str) -> None:
    "Say hello."
    click.echo(f"hello {name}")
"""


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with one command that is there, and one whose module is missing."""
    (tmp_path / "plugin_of_a_test.py").write_text(PLUGIN)
    metadata = tmp_path / "plugin_of_a_test-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin-of-a-test\n")
    (metadata / "entry_points.txt").write_text(
        f"[{GROUP}]\ngreet = plugin_of_a_test:greet\nabsent = no_such_package.command:absent\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, arguments)
    return result.exit_code, result.output


def test_a_plugin_is_a_command_like_any_other() -> None:
    assert invoke("greet", "you") == (0, "hello you\n")
    code, output = invoke("--help")
    assert code == 0
    assert re.search(r"^  greet +Say hello\.$", output, re.MULTILINE)


def test_a_plugin_that_is_not_installed_is_left_out_and_says_so() -> None:
    code, output = invoke("--help")
    assert (code, "absent" in output) == (0, False)
    assert "play" in output
    code, output = invoke("absent", "--any", "thing")
    assert code == 1
    assert output == (
        "Error: absent needs a package that is not installed: No module named 'no_such_package'\n"
    )


def test_an_unknown_command_is_a_usage_error() -> None:
    code, output = invoke("nothing")
    assert code == 2
    assert "No such command 'nothing'" in output


def test_the_projects_own_plugins_are_commands_of_the_names_they_have() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    plugins = project["entry-points"][GROUP]
    assert "inspect" in plugins
    for name, value in plugins.items():
        command = EntryPoint(name, value, GROUP).load()
        assert isinstance(command, click.Command)
        assert command.name == name


def test_the_projects_own_plugins_do_not_make_the_help_wait_for_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    modules = {value.partition(":")[0] for value in project["entry-points"][GROUP].values()}
    program = f"import sys, {', '.join(modules)}; print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert shown.stdout == "False\n"
