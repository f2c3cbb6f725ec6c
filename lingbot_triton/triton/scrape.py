"""Reads the metrics that a running server exports."""

from __future__ import annotations

import contextlib
import http.client

from prometheus_client.parser import text_string_to_metric_families

OWN = "lingbot_"
TIMEOUT_SECONDS = 10.0
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def read_page(address: str) -> str:
    """The text at a server's metrics address, `host:port`.

    Raises OSError or HTTPException where no server answers.
    """
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=TIMEOUT_SECONDS)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()


def scrape(address: str, prefix: str = OWN) -> dict[str, float]:
    """Series whose names start with `prefix` at a metrics address: `name{label="value"}` to value.

    Raises OSError or HTTPException where no server answers.
    """
    return {
        name: value for name, value in parse(read_page(address)).items() if name.startswith(prefix)
    }


def parse(page: str) -> dict[str, float]:
    """Every series of a page of metrics: `name{label="value"}` to value."""
    # Knowing their type, the parser would rename Triton's counters, which do not end in `_total`.
    lines = (line for line in page.splitlines(keepends=True) if not line.startswith("#"))
    return {
        _series(sample.name, sample.labels): sample.value
        for family in text_string_to_metric_families("".join(lines))
        for sample in family.samples
    }


def total(series: dict[str, float], family: str) -> float:
    """The sum of a family's series, over all values of its label."""
    return sum(value for name, value in series.items() if name.partition("{")[0] == family)


def _series(name: str, labels: dict[str, str]) -> str:
    pairs = ",".join(f'{label}="{value.translate(_ESCAPES)}"' for label, value in labels.items())
    return f"{name}{{{pairs}}}" if pairs else name
