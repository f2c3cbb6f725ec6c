"""Checkpoints in both layouts, whole and broken."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lingbot_triton.world import checkpoint
from lingbot_triton.world.config import TransformerConfig
from lingbot_triton.world.errors import CheckpointError
from lingbot_triton.world.loading import load_transformer
from lingbot_triton.world.text import TextEncoder
from lingbot_triton.world.vae import Decoder, Encoder
from tests.checkpoints import GOLDEN_CHECKPOINT

CPU, FLOAT = torch.device("cpu"), torch.float32
SOURCE = GOLDEN_CHECKPOINT / "lingbot_world_fast"


def all_weights() -> dict[str, torch.Tensor]:
    return {
        name: tensor
        for file in checkpoint.weight_files(SOURCE)
        for name, tensor in load_file(file).items()
    }


def write(root: Path, weights: dict[str, torch.Tensor] | None = None, **config) -> Path:
    """A transformer folder in one safetensors file; config entries of None are left out."""
    root.mkdir(parents=True, exist_ok=True)
    known = {**json.loads((SOURCE / "config.json").read_text()), **config}
    kept = {name: value for name, value in known.items() if value is not None}
    (root / "config.json").write_text(json.dumps(kept))
    save_file(weights or all_weights(), root / "model.safetensors")
    return root


def parameters(network: torch.nn.Module) -> dict[str, torch.Tensor]:
    return dict(network.named_parameters())


def test_every_weight_is_the_files_own():
    network = load_transformer(GOLDEN_CHECKPOINT, CPU, FLOAT)
    expected = all_weights()
    assert parameters(network).keys() == expected.keys()
    for name, weight in parameters(network).items():
        assert torch.equal(weight, expected[name])
        assert weight.device == CPU
        assert not weight.requires_grad


def test_one_file_at_the_root_is_the_same(tmp_path):
    whole = parameters(load_transformer(write(tmp_path), CPU, FLOAT))
    sharded = parameters(load_transformer(GOLDEN_CHECKPOINT, CPU, FLOAT))
    assert all(torch.equal(whole[name], sharded[name]) for name in sharded)


def test_shards_may_have_any_name(tmp_path):
    folder = tmp_path / "lingbot_world_fast"
    shutil.copytree(SOURCE, folder)
    index = folder / "diffusion_pytorch_model.safetensors.index.json"
    content = index.read_text()
    for shard in checkpoint.weight_files(folder):
        renamed = shard.name.replace("diffusion_pytorch_model", "model")
        content = content.replace(shard.name, renamed)
        shard.rename(folder / renamed)
    index.write_text(content)
    assert load_transformer(tmp_path, CPU, FLOAT).config.num_layers == 3


def test_dtype_is_taken_weight_by_weight():
    network = load_transformer(GOLDEN_CHECKPOINT, CPU, torch.bfloat16)
    kinds = {name: weight.dtype for name, weight in parameters(network).items()}
    assert kinds["blocks.1.ffn.0.weight"] == torch.bfloat16
    for name in ("blocks.1.modulation", "time_projection.1.weight", "head.head.weight"):
        assert kinds[name] == torch.float32


def test_diffusers_names_in_the_config_are_understood(tmp_path):
    renamed = {"num_attention_heads": 4, "attention_head_dim": 24, "in_channels": 36}
    dropped = dict.fromkeys(("num_heads", "dim", "in_dim", "control_type"))
    write(tmp_path / "transformer", **renamed, **dropped, out_channels=16, patch_size=[1, 2, 2])
    config = load_transformer(tmp_path, CPU, FLOAT).config
    assert config == load_transformer(GOLDEN_CHECKPOINT, CPU, FLOAT).config


def test_diffusers_folders_of_vae_and_text_give_the_same(tmp_path):
    from diffusers.loaders.single_file_utils import convert_wan_vae_to_diffusers
    from transformers import UMT5Config, UMT5EncoderModel

    native = torch.load(GOLDEN_CHECKPOINT / "Wan2.1_VAE.pth", weights_only=True)
    (tmp_path / "vae").mkdir()
    vae_file = tmp_path / "vae" / "diffusion_pytorch_model.safetensors"
    save_file(convert_wan_vae_to_diffusers(native), vae_file)
    vae_config = {"_class_name": "AutoencoderKLWan", "base_dim": 8, "z_dim": 16}
    (tmp_path / "vae" / "config.json").write_text(json.dumps(vae_config))
    ours = TextEncoder.load(GOLDEN_CHECKPOINT, CPU, FLOAT)
    model = UMT5EncoderModel(UMT5Config(**asdict(ours.encoder.config)))
    model.encoder.load_state_dict(ours.encoder.state_dict())
    model.save_pretrained(tmp_path / "text_encoder")
    shutil.copytree(GOLDEN_CHECKPOINT / "google" / "umt5-xxl", tmp_path / "tokenizer")

    with torch.inference_mode():
        theirs = TextEncoder.load(tmp_path, CPU, FLOAT)
        assert torch.equal(theirs.encode("a hill"), ours.encode("a hill"))
    for part in (Encoder, Decoder):
        mine, other = (part.load(root, CPU, FLOAT) for root in (GOLDEN_CHECKPOINT, tmp_path))
        expected = parameters(mine.network)
        assert all(
            torch.equal(weight, expected[name])
            for name, weight in parameters(other.network).items()
        )


@pytest.mark.parametrize(
    ("find", "names"),
    [
        (checkpoint.find_transformer, ["lingbot_world_fast/config.json", "transformer/config"]),
        (checkpoint.find_vae, ["Wan2.1_VAE.pth", "/vae"]),
        (checkpoint.find_text_encoder, ["models_t5_umt5-xxl-enc-bf16.pth", "/text_encoder"]),
        (checkpoint.find_tokenizer, ["google/umt5-xxl", "/tokenizer"]),
    ],
)
def test_what_is_missing_is_named_with_every_place_looked_at(tmp_path, find, names):
    with pytest.raises(CheckpointError) as caught:
        find(tmp_path)
    assert all(name in str(caught.value) for name in [*names, str(tmp_path)])


def test_missing_and_unexpected_weights_are_listed(tmp_path):
    weights = all_weights()
    for layer in range(3):
        del weights[f"blocks.{layer}.norm3.bias"], weights[f"blocks.{layer}.norm3.weight"]
    weights["img_emb.proj.weight"] = torch.zeros(2)
    with pytest.raises(
        CheckpointError,
        match=r"missing: blocks.0.norm3.bias, .* and 1 more; unexpected: img_emb.proj.weight",
    ):
        load_transformer(write(tmp_path, weights), CPU, FLOAT)


def test_a_weight_of_another_shape_is_named(tmp_path):
    weights = {**all_weights(), "head.modulation": torch.zeros(1, 3, 96)}
    with pytest.raises(CheckpointError, match=r"head.modulation \[1, 3, 96\], not \[1, 2, 96\]"):
        load_transformer(write(tmp_path, weights), CPU, FLOAT)


def test_a_missing_shard_is_named(tmp_path):
    shutil.copytree(SOURCE, tmp_path / "lingbot_world_fast")
    shard = checkpoint.weight_files(tmp_path / "lingbot_world_fast")[1]
    shard.unlink()
    with pytest.raises(CheckpointError, match=f"missing: {shard.name}"):
        load_transformer(tmp_path, CPU, FLOAT)


def test_no_weights_and_too_many_are_told(tmp_path):
    write(tmp_path)
    shutil.copy(tmp_path / "model.safetensors", tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match=r"exactly one .* it has 2"):
        checkpoint.weight_files(tmp_path)
    with pytest.raises(CheckpointError, match="it has 0"):
        checkpoint.weight_files(tmp_path / "empty")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"control_type": "act"}, "control_type is 'act', the weights say 'cam'"),
        ({"dim": 128}, "dim is 128, the weights say 96"),
        ({"num_layers": 2}, "num_layers is 2, the weights say 3"),
        ({"patch_size": [1, 4, 4]}, r"patch_size is \(1, 4, 4\), the weights say \(1, 2, 2\)"),
        ({"num_heads": None}, "names no num_heads"),
        ({"num_heads": 5}, "5 heads do not share a width of 96"),
        ({"cross_attn_norm": False}, "cross_attn_norm is false"),
        ({"qk_norm": False}, "qk_norm is false"),
    ],
)
def test_config_and_weights_must_agree(tmp_path, config, message):
    with pytest.raises(CheckpointError, match=message):
        load_transformer(write(tmp_path, **config), CPU, FLOAT)


def test_control_widths_that_are_no_control_are_refused():
    shapes = {name: tuple(weight.shape) for name, weight in all_weights().items()}
    shapes["patch_embedding_wancamctrl.weight"] = (96, 1000)
    with pytest.raises(
        CheckpointError, match="1000 values a token; cam needs 1536, act needs 1792"
    ):
        TransformerConfig.read({"num_heads": 4}, shapes, "here")


def test_the_old_pth_format_is_read_too(tmp_path):
    native = torch.load(GOLDEN_CHECKPOINT / "Wan2.1_VAE.pth", weights_only=True)
    path = tmp_path / "Wan2.1_VAE.pth"
    torch.save(native, path, _use_new_zipfile_serialization=False)
    read = dict(checkpoint.read(path, CPU))
    assert read.keys() == native.keys()
    assert torch.equal(read["conv1.weight"], native["conv1.weight"])


def test_a_pickle_that_runs_code_is_refused(tmp_path):
    class Harmful:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "harmed",))

    torch.save({"encoder.conv1.weight": Harmful()}, tmp_path / "Wan2.1_VAE.pth")
    with pytest.raises(CheckpointError, match="cannot be read as weights"):
        Encoder.load(tmp_path, CPU, FLOAT)
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_a_broken_config_is_told(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_transformer(tmp_path, CPU, FLOAT)


def test_broken_weights_are_told(tmp_path):
    write(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 64)
    with pytest.raises(CheckpointError, match="cannot be read as safetensors"):
        load_transformer(tmp_path, CPU, FLOAT)
