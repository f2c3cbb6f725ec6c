"""Reads what a running server says of itself in numbers."""

from __future__ import annotations

import http.client
import re

OWN = "lingbot_"


def scrape(address: str, prefix: str = OWN) -> dict[str, float]:
    """Series whose names start with `prefix` at a metrics address: `name{label="value"}` to value.

    Raises OSError or HTTPException where no server answers.
    """
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    finally:
        connection.close()
    series = rf"^({prefix}\w*(?:\{{.*\}})?) (\S+)$"
    return {name: float(value) for name, value in re.findall(series, text, re.MULTILINE)}


def total(series: dict[str, float], family: str) -> float:
    """The sum of a family's series, over all values of its label."""
    return sum(value for name, value in series.items() if name.partition("{")[0] == family)
