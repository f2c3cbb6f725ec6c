"""The networks of VAE and text encoder against those they are written after, bit for bit."""

from __future__ import annotations

import subprocess
import sys
from types import MethodType
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLWan
from diffusers.loaders.single_file_utils import convert_wan_vae_to_diffusers
from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d
from transformers import UMT5Config as TheirConfig
from transformers import UMT5EncoderModel

from lingbot_triton.settings import EMBEDDED_CHECKPOINT
from lingbot_triton.world.umt5 import UMT5Config, UMT5Encoder
from lingbot_triton.world.vae_layers import CausalConv3d
from lingbot_triton.world.vae_names import converted_name
from lingbot_triton.world.vae_network import VAEConfig, WanVAE
from tests.checkpoints import GOLDEN_CHECKPOINT

VARIANTS = pytest.mark.parametrize(
    ("dtype", "onednn"), [(torch.float32, False), (torch.float32, True), (torch.bfloat16, False)]
)


def by_onednn(module: Any, x: torch.Tensor, weight: torch.Tensor, bias: Any) -> Any:
    return torch.ops.aten.mkldnn_convolution(
        x, weight, bias, module.padding, module.stride, module.dilation, module.groups
    )


def vaes(dtype: torch.dtype, onednn: bool) -> tuple[WanVAE, Any]:
    """Ours and diffusers', with the same random weights."""
    torch.manual_seed(1)
    theirs: Any = AutoencoderKLWan(base_dim=8).eval()
    for parameter in theirs.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.05)
    ours = WanVAE(VAEConfig(base_dim=8)).eval()
    ours.load_state_dict(theirs.state_dict())
    for module in (*ours.modules(), *theirs.modules()):
        if isinstance(module, CausalConv3d):
            module.use_onednn = onednn
        elif onednn and isinstance(module, WanCausalConv3d):
            module._conv_forward = MethodType(by_onednn, module)
    torch.nn.Module.to(theirs, dtype)
    return ours.to(dtype), theirs


@VARIANTS
@torch.inference_mode()
def test_the_encoder_is_that_of_diffusers(dtype, onednn):
    ours, theirs = vaes(dtype, onednn)
    features: Any = [None] * ours.encoder.memories
    places = [None] * 64
    for frames in (1, 4, 4, 4, 4):
        video = torch.randn(1, 3, frames, 32, 48).to(dtype)
        mine = ours.quant_conv(ours.encoder(video, features), [])
        other = theirs.quant_conv(theirs.encoder(video, feat_cache=places, feat_idx=[0]))
        assert torch.equal(mine, other)


@VARIANTS
@torch.inference_mode()
def test_the_decoder_is_that_of_diffusers(dtype, onednn):
    ours, theirs = vaes(dtype, onednn)
    features: Any = [None] * ours.decoder.memories
    places = [None] * 64
    for index in range(5):
        latent = torch.randn(1, 16, 1, 4, 6).to(dtype)
        mine = ours.decoder(ours.post_quant_conv(latent, []), features)
        other = theirs.decoder(
            theirs.post_quant_conv(latent),
            feat_cache=places,
            feat_idx=[0],
            first_chunk=index == 0,
        )
        assert torch.equal(mine, other)


def test_the_defaults_are_those_of_diffusers():
    with torch.device("meta"):
        theirs: Any = AutoencoderKLWan()
    assert VAEConfig.read(dict(theirs.config)) == VAEConfig()
    with torch.device("meta"):
        assert {name: weight.shape for name, weight in WanVAE(VAEConfig()).named_parameters()} == {
            name: weight.shape for name, weight in theirs.named_parameters()
        }


@pytest.mark.parametrize(
    "config",
    [{"is_residual": True}, {"patch_size": 2}, {"attn_scales": [1.0]}, {"decoder_base_dim": 256}],
)
def test_another_vae_is_refused(config):
    with pytest.raises(ValueError, match=next(iter(config))):
        VAEConfig.read(config)


@pytest.mark.parametrize("root", [GOLDEN_CHECKPOINT, EMBEDDED_CHECKPOINT])
def test_the_names_of_the_vaes_weights_are_those_of_diffusers(root):
    names = list(torch.load(root / "Wan2.1_VAE.pth", weights_only=True))
    expected = convert_wan_vae_to_diffusers({name: name for name in names})
    assert {converted_name(name): name for name in names} == expected
    with torch.device("meta"):
        assert set(expected) == set(WanVAE(VAEConfig()).state_dict())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 5, 40, 300])
@torch.inference_mode()
def test_the_text_encoder_is_that_of_transformers(dtype, tokens):
    torch.manual_seed(2)
    sizes = {"vocab_size": 50, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2}
    config = TheirConfig(**sizes, num_heads=4, dropout_rate=0.0)
    theirs = UMT5EncoderModel(config).encoder.eval()
    ours = UMT5Encoder(UMT5Config.read(config.to_dict())).eval()
    ours.load_state_dict(theirs.state_dict())
    torch.nn.Module.to(theirs, dtype)
    ids = torch.randint(0, 50, (1, tokens))
    assert torch.equal(ours.to(dtype)(ids), theirs(input_ids=ids).last_hidden_state)


def test_another_feed_forward_is_refused():
    assert UMT5Config.read({}) == UMT5Config()
    with pytest.raises(ValueError, match="feed_forward_proj is 'relu'"):
        UMT5Config.read({"feed_forward_proj": "relu"})


def test_a_worker_imports_neither_of_the_libraries_nor_the_compiler():
    """Imports are most of the time that a server takes to start."""
    code = (
        "import sys; from lingbot_triton.settings import Settings; "
        "from lingbot_triton.stage import STAGES; from lingbot_triton.stages import load; "
        "[load.load_stage(stage, Settings()) for stage in STAGES]; print(*sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = set(run.stdout.split())
    assert {"torch", "lingbot_triton.world.umt5"} <= imported
    assert not imported & {"diffusers", "transformers", "scipy", "sympy", "torch._dynamo"}
