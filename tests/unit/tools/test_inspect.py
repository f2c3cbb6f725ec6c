"""What is said of a folder of weights, without loading any."""

from __future__ import annotations

import functools
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from lingbot_tools.inspect import command
from lingbot_tools.inspect.checkpoint import Inspection, inspect, parse_bytes
from lingbot_triton.options import SessionOptions
from lingbot_triton.settings import Settings
from lingbot_triton.stages.condition import ConditionStage
from lingbot_triton.stages.decode import DecodeStage
from lingbot_triton.stages.denoise import DenoiseStage
from lingbot_triton.world.config import TransformerConfig
from lingbot_triton.world.geometry import Geometry
from lingbot_triton.world.memory import charged_bytes, frame_bytes, session_bytes
from lingbot_triton.world.vae import memory_bytes, skeleton
from lingbot_triton.world.vae_network import VAEConfig, WanVAE
from tests.checkpoints import GOLDEN_CHECKPOINT

ACT = Path(__file__).parents[2] / "golden" / "act" / "checkpoint"
FULL = TransformerConfig(5120, 13824, 40, 40, "cam")


@functools.cache
def look(root: Path = GOLDEN_CHECKPOINT, dtype: str = "float32", gpu_bytes: int = 0) -> Inspection:
    settings = Settings(checkpoint=str(root), dtype=dtype)
    return inspect(settings, area=64 * 96, options=SessionOptions(), gpu_bytes=gpu_bytes)


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(command.inspect, arguments)
    return result.exit_code, result.output


def held(features: list[object]) -> int:
    return sum(part.nbytes for part in features if isinstance(part, torch.Tensor))


def test_sizes_are_those_of_what_is_loaded():
    found = look()
    network = DenoiseStage.load(Settings(checkpoint=str(GOLDEN_CHECKPOINT), device="cpu")).network
    weights = list(network.parameters())
    part = found.parts[0]
    assert (part.name, part.layout) == ("transformer", "native")
    assert part.parameters == sum(weight.numel() for weight in weights)
    assert part.memory_bytes == sum(weight.nbytes for weight in weights)
    assert part.stored_bytes > part.memory_bytes
    assert [part.name for part in found.parts[1:]] == ["VAE", "text encoder", "tokenizer"]
    assert found.missing == []
    assert found.network["control_type"] == "cam"
    assert look(ACT).network["control_type"] == "act"


def test_memory_of_sessions_is_what_stages_hold():
    found = look()
    geometry = Geometry(found.height, found.width)
    denoise = DenoiseStage.load(Settings(checkpoint=str(GOLDEN_CHECKPOINT), device="cpu"))
    assert found.session_bytes == denoise.kv_bytes(SessionOptions(), geometry)
    condition, decode = (
        stage.load(Settings(checkpoint=str(GOLDEN_CHECKPOINT), device="cpu"))
        for stage in (ConditionStage, DecodeStage)
    )
    picture = condition.open_scaled(torch.zeros(3, geometry.height, geometry.width))
    condition.step(picture, {}, {})
    decoder = decode.open({}, {})
    latent = np.zeros((16, 3, *geometry.latent), np.float32)
    decode.step(decoder, {"latent": latent}, {})
    assert found.encoder_bytes == held(picture.memory.features) > 0
    assert found.decoder_bytes == held(decoder.features) > 0


def test_memory_scales_with_the_dtype():
    vae = skeleton(GOLDEN_CHECKPOINT)[0]
    exact, rounded = (memory_bytes(vae, 32, 48, itemsize) for itemsize in (4, 2))
    assert exact == tuple(2 * count for count in rounded)
    assert look().kv_bytes_per_frame == 2 * look(dtype="bfloat16").kv_bytes_per_frame


def test_full_size_sessions():
    """1.19 GiB a latent frame of 480x832, in bfloat16."""
    assert frame_bytes(FULL, Geometry(480, 832), 2) == 1560 * 819_200
    frames = session_bytes(FULL, 15, Geometry(464, 832), 2) / frame_bytes(
        FULL, Geometry(464, 832), 2
    )
    assert frames == pytest.approx(15 + 512 / 1508)


def test_sessions_that_fit_grow_with_the_gpu():
    counts = [look(gpu_bytes=gib * 2**30) for gib in (1, 4, 8)]
    together = [found.sessions_together for found in counts]
    assert together[0] == 0
    assert 0 < together[1] < together[2] < counts[2].sessions_alone
    assert look().sessions_alone is None


def test_parts_that_are_missing_are_told_and_the_rest_is_shown(tmp_path):
    shutil.copytree(GOLDEN_CHECKPOINT / "lingbot_world_fast", tmp_path / "lingbot_world_fast")
    found = look(tmp_path, gpu_bytes=2**33)
    assert [part.name for part in found.parts] == ["transformer"]
    assert [problem.split(" in ")[0] for problem in found.missing] == [
        "no VAE",
        "no text encoder",
        "no tokenizer",
    ]
    assert (found.sessions_alone > 0, found.sessions_together) == (True, None)
    code, output = run(str(tmp_path))
    assert code == 1
    assert "missing: no VAE in checkpoint" in output
    code, output = run(str(tmp_path), "--companions", str(GOLDEN_CHECKPOINT))
    assert code == 0
    assert "tokenizer (native)" in output


def test_the_command_says_what_there_is():
    arguments = ("--gpu-memory", "8 GiB", "--size-area", "96x64", "--window", "15")
    code, output = run(str(GOLDEN_CHECKPOINT), *arguments)
    assert code == 0
    for line in (
        "control cam, 3 layers of width 96",
        "a session of 96x48 pixels",
        "15 of which are kept",
        "sessions that fit a GPU of 8.00 GiB that only denoises: ",
        "sessions that fit a GPU of 8.00 GiB that does everything: ",
    ):
        assert line in output
    code, output = run(str(GOLDEN_CHECKPOINT), *arguments, "--json")
    told = json.loads(output)
    assert (code, told["cache_frames"], told["gpu_bytes"]) == (0, 15, 2**33)
    assert told["weight_bytes"] == sum(part["memory_bytes"] for part in told["parts"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["/nowhere"], "/nowhere is no folder"),
        ([str(GOLDEN_CHECKPOINT), "--gpu-memory", "much"], "'much' is no amount of memory"),
        ([str(GOLDEN_CHECKPOINT), "--dtype", "int8"], "dtype is 'int8'; it must be one of"),
        ([str(GOLDEN_CHECKPOINT), "--size-area", "wide"], "'wide' is neither"),
        ([str(GOLDEN_CHECKPOINT), "--size-area", "9"], "each side needs at least 16"),
    ],
)
def test_what_makes_no_sense_is_told_in_a_line(arguments, message):
    code, output = run(*arguments)
    assert code == 1
    assert message in output
    assert "Traceback" not in output


def test_without_the_servers_packages_the_command_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "lingbot_tools.inspect.checkpoint", None)
    monkeypatch.delattr("lingbot_tools.inspect.checkpoint")
    code, output = run(str(GOLDEN_CHECKPOINT))
    assert code == 1
    assert "inspect needs the server's packages" in output


@pytest.mark.parametrize(
    ("text", "count"),
    [("80GiB", 80 * 2**30), ("141 GB", 141 * 10**9), ("1.5mib", 1572864), ("77", 77)],
)
def test_amounts_of_memory(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GiB", "80 gigs", "1.2.3GB", "-4GB"])
def test_amounts_that_are_none(text):
    with pytest.raises(ValueError, match="no amount of memory"):
        parse_bytes(text)


def test_the_sizes_in_the_documentation_are_those_that_sessions_are_charged():
    text = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()
    sizing = text.partition("## Sizing")[2].partition("\n## ")[0]
    geometry = Geometry(480, 832)
    frame, whole, window = (
        frame_bytes(FULL, geometry, 2),
        charged_bytes(FULL, 21, 3, geometry, 2),
        charged_bytes(FULL, 9, 3, geometry, 2),
    )
    with torch.device("meta"):
        vae = WanVAE(VAEConfig())
    encoder, decoder = memory_bytes(vae, 480, 832, 4)
    for words in (
        f"{frame / 2**30:.2f} GiB per latent frame kept",
        f"{(whole - 21 * frame) / 2**30:.1f} GiB of each session",
        f"21 latent frames) | {whole / 2**30:.0f} GiB",
        f"`kv_window_frames` 9 | {window / 2**30:.1f} GiB",
        f"{encoder / 2**30:.1f} GiB until its conditions are constant, {decoder / 2**30:.1f} GiB",
    ):
        assert words in sizing
