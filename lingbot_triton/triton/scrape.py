"""Reads what a running server says of itself in numbers."""

from __future__ import annotations

import http.client
import re

OWN_SERIES = re.compile(r"^(lingbot_\w+(?:\{.*\})?) (\S+)$", re.MULTILINE)


def scrape(address: str) -> dict[str, float]:
    """The service's own series at a metrics address: `name{label="value"}` to its value.

    Raises OSError or HTTPException where no server answers.
    """
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    finally:
        connection.close()
    return {name: float(value) for name, value in OWN_SERIES.findall(text)}


def total(series: dict[str, float], family: str) -> float:
    """The sum of a family's series, over all values of its label."""
    return sum(value for name, value in series.items() if name.partition("{")[0] == family)
