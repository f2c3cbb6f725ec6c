"""What the official implementation computes, through the whole server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lingbot_tools.regression.server import play_on_server
from tests.checkpoints import GOLDEN, GOLDEN_CHECKPOINT
from tests.server.conftest import StartServer

SECRET = "known to this test"


@pytest.mark.parametrize(
    ("checkpoint", "expected", "flows"),
    [
        (GOLDEN_CHECKPOINT, GOLDEN / "cam" / "expected", 24),
        (GOLDEN / "act" / "checkpoint", GOLDEN / "act" / "expected", 12),
    ],
    ids=["cam", "act"],
)
def test_condition_flows_latents_and_frames_agree(
    shared_server: StartServer, checkpoint: Path, expected: Path, flows: int
) -> None:
    server = shared_server(secret=SECRET, checkpoint=str(checkpoint))
    report = play_on_server(server.grpc, expected, SECRET)
    assert [check for check in report.checks if not check.ok] == []
    kinds = [check.kind for check in report.checks]
    assert kinds.count("flow") == flows
    assert kinds.count("latents") == len(list(expected.glob("session_*.safetensors")))
    assert kinds.count("condition") == 1
    assert kinds.count("context") == len(json.loads((expected / "text_prompts.json").read_text()))
    assert {"frames_largest", "frames_off_share", "repeat"} <= set(kinds)
    assert report.measures["session_full.frames_u8.ssim"] > 0.999
