"""Why a tritonserver stopped, found in what it wrote."""

from __future__ import annotations

import re


def explain(output: list[str]) -> str:
    """One sentence, from the server's own words, on why it stopped."""
    text = "\n".join(output)
    pattern = r"failed to load '(\S+)' version \d+: (?:\w+: )?(.+?)(?:\"|\\n)"
    failures = dict(re.findall(pattern, text))
    if failures:
        reasons = [f"model {name}: {reason}" for name, reason in failures.items()]
        return "\n".join(["tritonserver stopped, since it could not load", *reasons])
    taken = re.search(r"failed to start (\w+) service: .*?Socket '(\S+)' already in use", text)
    if taken:
        return f"tritonserver stopped, since {taken[2]} ({taken[1]}) is taken by another program"
    errors = re.findall(r'^E\d{4} \S+ \d+ \S+\] "(.*)"$', text, re.MULTILINE)
    errors = [error for error in errors if "CudaDriverHelper" not in error]  # no GPU: harmless
    last = (errors or [line for line in output if line.strip()])[-6:]
    return "\n".join(["tritonserver stopped; its last words were:", *(last or ["(none)"])])
