"""Half precision against what the official code computed in float32."""

from __future__ import annotations

import pytest

from lingbot_tools.gpu_check.measurements import measure_golden


@pytest.mark.parametrize("kind", ["cam", "act"])
@pytest.mark.parametrize(
    ("dtype", "limit"), [("float32", 1e-5), ("bfloat16", 1e-2), ("float16", 1e-3)]
)
def test_half_precision_is_close(kind, dtype, limit):
    error = measure_golden(kind, "cpu", dtype)
    assert error["flow_relative"] < limit
    assert error["latents_relative"] < limit
    assert error["latents_max"] < 50 * limit
