"""What the documentation says of the code is true, as far as that can be looked up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from lingbot_client.cli import main as lingbot_world

from lingbot_tools.rendering import reference, reference_text
from lingbot_triton import errors
from lingbot_triton.metrics import METRICS, WORKER_STATES
from lingbot_triton.options import SessionOptions
from lingbot_triton.settings import PREFIX, Settings
from lingbot_triton.triton import placement
from lingbot_triton.triton.serve import main as serve

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
EVERYTHING = "\n".join(path.read_text() for path in DOCUMENTS)
NOT_SETTINGS = {"LINGBOT_SECRET"}
"""Variables that `triton/secret.py` reads itself."""


def names(path: Path) -> str:
    return str(path.relative_to(ROOT))


def links(path: Path) -> Iterator[tuple[Path, str]]:
    """Files, and headings in them, that a document links to."""
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if not target.startswith(("http://", "https://")):
            file, _, heading = target.partition("#")
            yield (path.parent / file).resolve() if file else path, heading


def headings(path: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in found)
    return {heading.strip().replace(" ", "-") for heading in plain}


def code(kind: str) -> list[str]:
    """The code blocks of a kind in all documents."""
    return re.findall(rf"^```{kind}\n(.*?)^```", EVERYTHING, re.MULTILINE | re.DOTALL)


def table_column(text: str, heading: str) -> list[str]:
    """The first cells of the tables under a heading, without their backquotes."""
    section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert section is not None
    rows = re.findall(r"^\| `?([^|`]+?)`? +\|", section[1], re.MULTILINE)
    return [cell for cell in rows if not cell.startswith("---")][1:]


@pytest.mark.parametrize("path", DOCUMENTS, ids=names)
def test_links_lead_somewhere(path: Path) -> None:
    for target, heading in links(path):
        assert target.exists(), target
        if heading:
            assert heading in headings(target), f"{names(target)}#{heading}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=names)
def test_lines_of_prose_are_not_endless(path: Path) -> None:
    prose = [line for line in path.read_text().splitlines() if not line.startswith(("|", "["))]
    assert max(map(len, prose)) <= 125


def test_the_protocol_is_what_the_code_says() -> None:
    assert CliRunner().invoke(reference.main, ["--check"]).output == (
        "docs/protocol.md is up to date\n"
    )


def test_every_option_code_and_status_is_described() -> None:
    assert list(reference_text.OPTIONS) == list(SessionOptions.model_fields)
    assert list(reference_text.CODES) == list(errors.BY_CODE)


def test_the_limits_of_an_option_are_those_it_is_held_to() -> None:
    assert reference.limits("decode_frames") == "1 to 3"
    assert reference.limits("kv_sink_frames") == "0 to 1000"
    assert reference.limits("trace") == ""


def test_a_stale_protocol_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stale = tmp_path / "protocol.md"
    stale.write_text("something else")
    monkeypatch.setattr(reference, "PATH", stale)
    result = CliRunner().invoke(reference.main, ["--check"])
    assert (result.exit_code, stale.read_text()) == (1, "something else")
    assert "stale" in result.stderr
    CliRunner().invoke(reference.main)
    assert stale.read_text() == reference.render()


def test_every_setting_is_in_the_table_of_settings() -> None:
    settings = {PREFIX + name.upper() for name in Settings.model_fields}
    assert set(table_column(OPERATIONS, "Settings")) == settings | NOT_SETTINGS


def test_variables_that_are_named_exist() -> None:
    known = {PREFIX + name.upper() for name in Settings.model_fields} | NOT_SETTINGS
    assert set(re.findall(r"\bLINGBOT_[A-Z_]+\b", EVERYTHING)) <= known


def test_every_metric_is_in_the_table_of_metrics() -> None:
    assert set(table_column(OPERATIONS, "Metrics")) == {
        spec.name for spec in (*METRICS, WORKER_STATES)
    }


def test_every_alert_is_in_the_table_of_alerts() -> None:
    rules = yaml.safe_load((ROOT / "docker" / "prometheus" / "alerts.yml").read_text())
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    assert set(table_column(OPERATIONS, "Alerts")) == alerts


def test_scripts_that_are_named_exist() -> None:
    for script in set(re.findall(r"\bscripts/([a-z][a-z-]+)", EVERYTHING)):
        assert (ROOT / "scripts" / script).is_file(), script


def test_options_of_commands_that_are_shown_exist() -> None:
    serve_options = {name for option in serve.params for name in option.opts}
    shown = {"serve": serve_options}
    for name, command in lingbot_world.commands.items():  # type: ignore[attr-defined]
        shown[name] = {text for option in command.params for text in option.opts}
    lines = [line for block in code("bash") for line in block.replace("\\\n", "").splitlines()]
    seen = set()
    for line in lines:
        command = re.search(r"scripts/(serve)\b|lingbot-world (\w+)", line)
        if command is not None:
            name = command[1] or command[2]
            words = line.partition("#")[0].partition(" -- ")[0]
            used = set(re.findall(r"(?<=\s)(--[a-z-]+)", words))
            assert used <= shown[name], line
            seen.add(name)
    assert {"serve", "play", "info", "bench"} <= seen


def test_placements_that_are_shown_can_be_used() -> None:
    shown = code("toml")
    assert len(shown) == 1
    for text in shown:
        assert "denoise" in placement.parse(text)


def test_diagrams_are_of_a_kind_that_mermaid_draws() -> None:
    diagrams = code("mermaid")
    assert len(diagrams) >= 3
    for diagram in diagrams:
        assert diagram.startswith(("sequenceDiagram\n", "flowchart "))
        assert len(re.findall(r"^\s*(?:par|subgraph)\b", diagram, re.MULTILINE)) == len(
            re.findall(r"^\s*end$", diagram, re.MULTILINE)
        )
