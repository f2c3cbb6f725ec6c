"""What can be known of the image and its monitoring without an engine that builds or runs them."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lingbot_triton.metrics import METRICS, WORKER_STATES, Kind
from lingbot_triton.settings import PREFIX, Settings
from lingbot_triton.triton.serve import main as serve

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())
DASHBOARD = json.loads((DOCKER / "grafana" / "dashboards" / "lingbot.json").read_text())
ALERTS = yaml.safe_load((DOCKER / "prometheus" / "alerts.yml").read_text())
INSTRUCTIONS = {
    *("ARG", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM"),
    *("HEALTHCHECK", "RUN", "STOPSIGNAL", "USER", "WORKDIR"),
}

TRITON_GPU_METRICS = {
    "nv_gpu_utilization",
    "nv_gpu_memory_used_bytes",
    "nv_gpu_memory_total_bytes",
    "nv_gpu_power_usage",
}
"""Families of Triton's own, from its documentation; a server exports them where it has a GPU."""


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions: name and the rest, continuation lines joined."""
    text = (DOCKER / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    found = [line.strip().partition(" ") for line in joined.splitlines() if line.strip()]
    return [(name, rest.strip()) for name, _, rest in found]


def exported_names() -> set[str]:
    """Every name under which Prometheus finds one of the service's families."""
    names = set()
    for spec in (*METRICS, WORKER_STATES):
        suffixes = ("_bucket", "_sum", "_count") if spec.kind is Kind.HISTOGRAM else ("",)
        names |= {spec.name + suffix for suffix in suffixes}
    return names


def dashboard_queries() -> Iterator[tuple[str, str]]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def alert_queries() -> Iterator[tuple[str, str]]:
    for group in ALERTS["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


QUERIES = [*dashboard_queries(), *alert_queries()]


def selectors(query: str) -> list[tuple[str, str]]:
    """Metric names in a query, each with the text of its label matchers."""
    return re.findall(r"\b((?:lingbot|nv)_\w+)(?:\{([^}]*)\})?", query)


def test_the_dockerfile_has_only_known_instructions() -> None:
    assert {name for name, _ in instructions()} == INSTRUCTIONS


def copied() -> list[str]:
    """Every path that the Dockerfile copies from the repository."""
    return [
        source for name, rest in instructions() if name == "COPY" for source in rest.split()[:-1]
    ]


def test_everything_that_is_copied_is_there_and_reaches_the_engine() -> None:
    ignore = (DOCKER / "Dockerfile.dockerignore").read_text().split()
    assert ignore[0] == "*"
    for source in copied():
        assert (ROOT / source).exists(), source
        assert f"!{source}" in ignore


def test_the_base_image_is_pinned_to_a_release() -> None:
    arguments = dict(rest.split("=", 1) for name, rest in instructions() if name == "ARG")
    assert re.fullmatch(r"nvcr\.io/nvidia/tritonserver:\d\d\.\d\d-py3", arguments["TRITON_IMAGE"])
    stages = {rest.partition(" AS ")[2] for name, rest in instructions() if name == "FROM"}
    assert f"attention-{arguments['ATTENTION']}" in stages


def test_the_image_does_not_run_as_root() -> None:
    users = [rest for name, rest in instructions() if name == "USER"]
    assert users == ["1000:1000"]


def test_the_entry_point_takes_the_options_it_is_given() -> None:
    (entry,) = (json.loads(rest) for name, rest in instructions() if name == "ENTRYPOINT")
    assert entry[:3] == ["python3", "-m", "lingbot_triton.triton.serve"]
    context = serve.make_context("serve", [*entry[3:], *COMPOSE["services"]["world"]["command"]])
    assert context.params["host"] == "0.0.0.0"
    choice = re.fullmatch(
        r"placements/\$\{PLACEMENT:-(.+)\}", str(context.params["model_repository"])
    )
    assert choice is not None
    assert (ROOT / "examples" / "placement" / f"{choice[1]}.toml").is_file()


def test_the_health_check_runs_a_file_of_the_image() -> None:
    (check,) = (rest for name, rest in instructions() if name == "HEALTHCHECK")
    command = json.loads(check.partition("CMD ")[2])
    assert (ROOT / command[1]).is_file()
    assert any(
        rest == f"{command[1]} {command[1]}" for name, rest in instructions() if name == "COPY"
    )


def test_the_packages_of_the_image_are_those_of_the_server_extra(tmp_path: Path) -> None:
    (run,) = (rest for name, rest in instructions() if name == "RUN" and "tomllib" in rest)
    code = re.match(r"python3 -c '(.*?)'", run)
    assert code is not None
    printed = subprocess.run(
        [sys.executable, "-c", code[1]], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    names = {_normalized(re.match(r"[\w-]+", line)[0]) for line in printed}  # type: ignore[index]
    lock = (ROOT / "requirements.lock").read_text().split()
    locked = {_normalized(line.partition("==")[0]) for line in lock}
    assert {"torch", "tritonclient", "safetensors"} <= names <= locked


def _normalized(package: str) -> str:
    """A package's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", package).lower()


def test_sageattention_is_built_for_the_named_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "setup.py").write_text(
        "import sys, torch\n"
        "found = [torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())]\n"
        "assert torch.cuda.is_available()\n"
        "open('seen', 'w').write(repr((found, sys.argv)))\n"
    )
    script = DOCKER / "build-sageattention.py"
    subprocess.run(
        [sys.executable, str(script), "/wheels"],
        cwd=tmp_path,
        env={"TORCH_CUDA_ARCH_LIST": "8.9;9.0"},
        check=True,
    )
    argv = ["setup.py", "bdist_wheel", "--dist-dir", "/wheels"]
    assert (tmp_path / "seen").read_text() == repr(([(8, 9), (9, 0)], argv))


def test_compose_sets_only_settings_that_there_are() -> None:
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    assert set(COMPOSE["services"]["world"]["environment"]) <= known


def test_compose_mounts_and_builds_what_is_there() -> None:
    for service in COMPOSE["services"].values():
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            if source.startswith("."):
                assert (DOCKER / source).is_dir(), source
            elif not source.startswith("$"):
                assert source in COMPOSE["volumes"]
    build = COMPOSE["services"]["world"]["build"]
    assert (DOCKER / build["context"] / build["dockerfile"]).samefile(DOCKER / "Dockerfile")


def test_compose_publishes_ports_on_this_machine_only() -> None:
    for service in COMPOSE["services"].values():
        for port in service["ports"]:
            assert port.startswith("127.0.0.1:")


def test_compose_gives_the_service_memory_to_share_and_gpus() -> None:
    world = COMPOSE["services"]["world"]
    assert world["shm_size"] == "2gb"
    (device,) = world["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]


def test_prometheus_scrapes_the_service_and_grafana_reads_prometheus() -> None:
    config = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    assert target.partition(":")[0] in COMPOSE["services"]
    assert all((DOCKER / "prometheus" / name).is_file() for name in config["rule_files"])
    provisioning = DOCKER / "grafana" / "provisioning"
    source = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())
    (datasource,) = source["datasources"]
    assert datasource["url"] == "http://prometheus:9090"
    uids = {target["datasource"]["uid"] for _, target in _targets()}
    assert uids == {datasource["uid"]}
    provider = yaml.safe_load((provisioning / "dashboards" / "lingbot.yaml").read_text())
    folder = provider["providers"][0]["options"]["path"]
    assert any(folder in volume for volume in COMPOSE["services"]["grafana"]["volumes"])


def _targets() -> Iterator[tuple[str, dict[str, Any]]]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target


@pytest.mark.parametrize(("title", "query"), QUERIES)
def test_a_query_names_metrics_and_labels_that_are_exported(title: str, query: str) -> None:
    labels = {spec.name: spec.label for spec in (*METRICS, WORKER_STATES)}
    found = selectors(query)
    assert found or query.startswith("up{")
    for name, matchers in found:
        assert name in exported_names() | TRITON_GPU_METRICS
        for label in re.findall(r"(\w+)\s*=", matchers):
            assert label == labels[name]


@pytest.mark.parametrize(("title", "query"), QUERIES)
def test_a_query_groups_by_labels_that_its_metrics_have(title: str, query: str) -> None:
    labels = {spec.label for spec in (*METRICS, WORKER_STATES) if spec.name in query} | {"le"}
    for names in re.findall(r"\bby \(([^)]*)\)", query):
        assert {name.strip() for name in names.split(",")} <= labels


def test_the_dashboard_shows_every_family() -> None:
    shown = " ".join(query for _, query in dashboard_queries())
    assert [spec.name for spec in (*METRICS, WORKER_STATES) if spec.name not in shown] == []


def test_the_panels_do_not_overlap() -> None:
    cells = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        own = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not own & cells, panel["title"]
        cells |= own


def test_the_health_check_needs_an_address() -> None:
    module = runpy.run_path(str(DOCKER / "healthcheck.py"))
    with pytest.raises(TypeError, match=r"url.*metrics"):
        module["main"]()
