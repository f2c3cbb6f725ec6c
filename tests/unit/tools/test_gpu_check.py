"""The GPU check's own code, on a CPU and at the smallest size."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from lingbot_tools.gpu_check import __main__ as program
from lingbot_tools.gpu_check import measurements
from lingbot_tools.gpu_check.cases import FULL, SMALL, peak, random_network
from lingbot_tools.gpu_check.measurements import (
    growth,
    open_session,
    operations,
    play,
    summarize,
)
from lingbot_tools.regression.expectations import ExpectationError
from lingbot_triton.options import SessionOptions
from lingbot_triton.stages.denoise import DenoiseStage
from lingbot_triton.world.attention import SDPA
from lingbot_triton.world.config import TransformerConfig
from lingbot_triton.world.geometry import Geometry
from lingbot_triton.world.kernels import Kernels

CPU = torch.device("cpu")
TINY = replace(
    SMALL,
    config=replace(SMALL.config, num_layers=2, dim=48, num_heads=2),
    geometry=Geometry(16, 32),
    vae_width=2,
    rolling_chunks=7,
    repeats=1,
)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def stage() -> DenoiseStage:
    return DenoiseStage(random_network(TINY.config, CPU, torch.float32), CPU)


@pytest.fixture
def no_golden(monkeypatch):
    """Golden sessions are played elsewhere; here they take the time of the check's own tests."""
    monkeypatch.setattr(measurements, "measure_golden", lambda kind, device, dtype: ERROR)


ERROR = {"flow_relative": 1e-7, "latents_relative": 1e-6, "latents_max": 1e-6}


@pytest.mark.usefixtures("no_golden")
def test_the_whole_check_runs_and_tells_what_it_found(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(program, "SMALL", TINY)
    file = tmp_path / "deeper" / "check.json"
    arguments = ["--device", "cpu", "--small", "--json", str(file)]
    assert program.main(arguments) == 0
    report, printed = json.loads(file.read_text()), capsys.readouterr().out
    assert report["problems"] == []
    assert [session["visible_frames"] for session in report["sessions"].values()] == [15, 21]
    assert report["sessions"]["window15+sink3"]["chunks_measured"] == 3
    assert len(report["chunks"]) == 7 + 7
    assert [row["compiled"] for row in report["variants"]] == [False, True]
    assert all(row["difference"] < 0.01 for row in report["variants"])
    assert set(report["vae"]) == {"float32", "bfloat16"}
    assert all(row["step_ms"] > 0 < row["commit_ms"] for row in report["variants"])
    assert len(report["golden"]) == 4
    assert report["memory"]["weights_bytes"] > 0
    assert any("needs a CUDA device" in what for what in report["left_out"])
    del report["chunks"]
    assert ast.literal_eval(printed) == report


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert program.main([]) == 2
    assert "torch sees no GPU here" in capsys.readouterr().out


def test_what_is_missing_is_left_out_and_what_is_wrong_is_a_problem(monkeypatch):
    missing = {
        "float32": ImportError("No module named 'safetensors'"),
        "bfloat16": ExpectationError("tests/golden"),
    }
    wrong = {**ERROR, "latents_relative": 0.5}

    def measure(kind, device, dtype):
        if kind == "act":
            raise missing[dtype]
        return wrong

    monkeypatch.setattr(measurements, "measure_golden", measure)
    monkeypatch.setattr(program.measurements, "growth", lambda _: 2**30)
    report = program.check(TINY, CPU, torch.float32)
    assert any("golden act: No module named 'safetensors'" in what for what in report["left_out"])
    assert any("golden act: tests/golden" in what for what in report["left_out"])
    assert [problem.split(":")[0] for problem in report["problems"]] == [
        "memory grew by 1073741824 bytes in 7 chunks",
        "golden cam in float32",
        "golden cam in bfloat16",
    ]


def test_it_needs_nothing_but_torch():
    code = "import sys, lingbot_tools.gpu_check.__main__; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = {name.partition(".")[0] for name in run.stdout.split()}
    assert "torch" in imported
    assert not imported & {
        *("diffusers", "transformers", "tokenizers", "safetensors", "click", "rich", "PIL"),
        *("tritonclient", "triton_python_backend_utils", "lingbot_client", "ftfy"),
    }


def control_flops(config: TransformerConfig, tokens: int) -> int:
    """One chunk's control, for all of its passes."""
    embedding = 2 * tokens * config.control_width * config.dim
    return embedding + (2 + 4 * config.num_layers) * 2 * tokens * config.dim**2


def pass_flops(config: TransformerConfig, tokens: int, visible: int) -> int:
    """One pass of `tokens` that attend to `visible` ones."""
    embedding = 2 * tokens * config.in_dim * 4 * config.dim
    head = 2 * tokens * config.dim * config.out_dim * 4
    return embedding + config.num_layers * block_flops(config, tokens, visible) + head


def commit_flops(config: TransformerConfig, tokens: int, visible: int) -> int:
    """The pass that leaves keys and values: its last block ends with those."""
    embedding = 2 * tokens * config.in_dim * 4 * config.dim
    last = 2 * 2 * tokens * config.dim**2
    return embedding + (config.num_layers - 1) * block_flops(config, tokens, visible) + last


def block_flops(config: TransformerConfig, tokens: int, visible: int) -> int:
    products = 2 * tokens * config.dim * (6 * config.dim + 2 * config.ffn_dim)
    return products + 4 * tokens * (visible + config.text_len) * config.dim


def test_operations_are_counted_exactly(stage):
    """By torch, for what really runs; here they are added up from the shapes."""
    state = open_session(stage, TINY, SessionOptions(kv_window_frames=6))
    play(stage, state, TINY, 2)
    tokens = 3 * TINY.geometry.tokens_per_frame
    assert operations(stage, state, TINY) == {
        "control": control_flops(TINY.config, tokens),
        "step": pass_flops(TINY.config, tokens, 2 * tokens),
        "commit": commit_flops(TINY.config, tokens, 2 * tokens),
    }


def test_a_full_pass_takes_a_quarter_of_a_second_at_peak():
    tokens = 3 * FULL.geometry.tokens_per_frame
    counted = pass_flops(FULL.config, tokens, 7 * tokens)
    assert 0.2 < counted / peak("NVIDIA H200") < 0.3


@pytest.mark.parametrize(
    ("gpu", "value"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("cpu", None),
    ],
)
def test_peaks_are_found_by_product_name(gpu, value):
    assert peak(gpu) == value


def test_only_chunks_that_see_a_full_window_are_summarized():
    names = ("visible_frames", "control_ms", "step_ms", "commit_ms", "latent_ms", "allocated_bytes")
    values = (
        (3, 9.0, [90.0, 9.0], 9.0, 9.0, 100),
        (6, 1.0, [50.0, 4.0], 2.0, 10.0, 700),
        (6, 3.0, [50.0, 6.0], 4.0, 30.0, 750),
    )
    chunks = [dict(zip(names, row, strict=True)) for row in values]
    counts = {"control": 10**9, "step": 2 * 10**9, "commit": 3 * 10**9}
    result = summarize(chunks, counts, 1e12, frame_ms=2.0)
    assert (result["chunks_measured"], result["control_ms"], result["step_ms"]) == (2, 2.0, 5.0)
    assert (result["commit_ms"], result["latent_ms"]) == (3.0, 20.0)
    assert result["peak_share"] == {"control": 0.5, "step": 0.4, "commit": 1.0}
    assert (result["first_frames_ms"], result["last_frames_ms"]) == (22.0, 26.0)
    assert result["in_line_ms"] == 29.0
    assert growth(chunks) == 50
    assert summarize(chunks, counts, None, 2.0)["peak_share"] == dict.fromkeys(counts)


def test_other_kernels_are_given_for_a_while(stage):
    other = Kernels.compile(SDPA, "eager")
    before = stage.network.kernels
    measurements.compute_with(stage.network, other)
    assert stage.network.blocks[1].self_attn.kernels is other
    measurements.compute_with(stage.network, before)
    assert stage.network.blocks[1].self_attn.kernels is before
