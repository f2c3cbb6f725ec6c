"""What the documentation says of the code is true, as far as that can be looked up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from lingbot_client import errors as client_errors
from lingbot_client.cli import main as lingbot_world

from lingbot_tools.rendering import reference
from lingbot_triton import errors
from lingbot_triton.metrics import METRICS, WORKER_STATES
from lingbot_triton.options import SessionOptions
from lingbot_triton.protocol import PUBLIC_INPUTS, EndReason
from lingbot_triton.settings import Settings, variable_of
from lingbot_triton.triton import placement
from lingbot_triton.triton.serve import main as serve
from tests.documents import ROOT, tables

DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
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


def test_the_rendered_tables_are_what_the_code_says() -> None:
    assert CliRunner().invoke(reference.main, ["--check"]).output == (
        "docs/protocol.md is up to date\ndocs/operations.md is up to date\n"
    )


def test_every_rendered_table_has_its_place() -> None:
    places = re.findall(r"<!-- rendered: (\S+) -->", EVERYTHING)
    assert sorted(places) == sorted(reference.TABLES)


def test_a_stale_table_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = "by hand\n\n<!-- rendered: inputs -->\n", "\n<!-- end -->\n\nby hand too\n"
    stale = tmp_path / "protocol.md"
    stale.write_text(f"{before}something else{after}")
    monkeypatch.setattr(reference, "DOCUMENTS", (stale,))
    result = CliRunner().invoke(reference.main, ["--check"])
    assert (result.exit_code, stale.read_text()) == (1, f"{before}something else{after}")
    assert "stale" in result.stderr
    assert CliRunner().invoke(reference.main).exit_code == 0
    rows = reference.tensor_table(PUBLIC_INPUTS)
    assert stale.read_text() == f"{before}\n{rows}\n{after}"


def test_the_tables_of_options_and_settings_have_all_of_them() -> None:
    (options,) = tables("docs/protocol.md", "Options")
    assert list(options) == list(SessionOptions.model_fields)
    (settings,) = tables("docs/operations.md", "Settings")
    assert list(settings) == [variable_of(name) for name in Settings.model_fields]
    for _, description in settings.values():
        assert description


def test_the_limits_of_an_option_are_those_it_is_held_to() -> None:
    (options,) = tables("docs/protocol.md", "Options")
    assert options["decode_frames"][:3] == ["whole number", "1", "1 to 3"]
    assert options["kv_window_frames"][:3] == ["whole number", "null", "3 to 1000"]
    assert options["kv_sink_frames"][:3] == ["whole number", "0", "0 to 1000"]
    assert options["intrinsics"][:3] == ["4 numbers", "null", ""]
    assert options["trace"][:3] == ["boolean", "false", ""]
    for name, (kind, _, limits, description) in options.items():
        assert description
        assert bool(limits) == (kind in ("number", "whole number")), name
        if limits:
            low, high = map(float, limits.split(" to "))
            for beyond in (low - 1, high + 1):
                value = beyond if kind == "number" else int(beyond)
                needed = {"kv_window_frames": 1000} if name == "kv_sink_frames" else {}
                with pytest.raises(errors.BadRequest, match=f"'{name}' is .* must lie between"):
                    SessionOptions(**{**needed, name: value}).check_chunk(3)


def test_server_client_and_document_have_the_same_codes() -> None:
    _, statuses, codes = tables("docs/protocol.md", "Responses")
    assert list(codes) == list(errors.BY_CODE) == list(client_errors.BY_CODE)
    for code, (_, ends_session) in codes.items():
        assert ends_session == ("yes" if client_errors.BY_CODE[code].ends_session else "")
    assert list(statuses) == ["READY", "FRAMES", "CLOSED"]


def test_every_reason_of_an_end_is_described() -> None:
    (summary,) = tables("docs/protocol.md", "`info` of CLOSED")
    assert re.findall("`(.*?)`", summary["reason"][0]) == [reason.value for reason in EndReason]


def test_variables_that_are_named_exist() -> None:
    known = {variable_of(name) for name in Settings.model_fields} | NOT_SETTINGS
    assert set(re.findall(r"\bLINGBOT_[A-Z_]+\b", EVERYTHING)) <= known


def test_every_metric_is_in_the_table_of_metrics() -> None:
    assert set(tables("docs/operations.md", "Metrics")[0]) == {
        spec.name for spec in (*METRICS, WORKER_STATES)
    }


def test_every_alert_is_in_the_table_of_alerts() -> None:
    rules = yaml.safe_load((ROOT / "docker" / "prometheus" / "alerts.yml").read_text())
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    assert set(tables("docs/operations.md", "Alerts")[0]) == alerts


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
