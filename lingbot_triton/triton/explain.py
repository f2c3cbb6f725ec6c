"""Why a tritonserver stopped, found in what it wrote."""

from __future__ import annotations

import re
from collections.abc import Iterable

ERROR = r'E\d{4} \S+ \d+ \S+\] "(.*)"$'


def explain(output: Iterable[str]) -> str:
    """A sentence, from the server's own words, on why it stopped."""
    text = "\n".join(output)
    pattern = r"failed to load '(\S+)' version \d+: (?:\w+: )?(.+?)(?:\"|\\n)"
    failures = dict(re.findall(pattern, text))
    if failures:
        reasons = [f"model {name}: {reason}" for name, reason in failures.items()]
        return "\n".join(["tritonserver stopped, since it could not load", *reasons])
    match = re.search(r"failed to start (\w+) service: .*?Socket '(\S+)' already in use", text)
    if match:
        return f"tritonserver stopped, since {match[2]} ({match[1]}) is taken by another program"
    return f"tritonserver stopped; {last_words(output)}"


def last_words(output: Iterable[str]) -> str:
    """The last errors in the server's output, or its last lines where it has no errors."""
    lines = [line for line in output if line.strip()]
    errors = [match[1] for line in lines if (match := re.match(ERROR, line))]
    errors = [error for error in errors if "CudaDriverHelper" not in error]  # no GPU: harmless
    return "\n".join(["its last words were:", *((errors or lines)[-6:] or ["(none)"])])
