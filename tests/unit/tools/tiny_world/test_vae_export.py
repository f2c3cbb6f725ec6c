from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.loaders.single_file_utils import convert_wan_vae_to_diffusers

from lingbot_tools.tiny_world.export import VAE_FILE, to_native
from lingbot_tools.tiny_world.vae_training import (
    build_vae,
    latent_statistics,
    normalise,
    released_statistics,
)
from lingbot_triton.world.vae import Decoder, Encoder
from lingbot_triton.world.vae_names import converted_name


@pytest.fixture(scope="module")
def vae() -> Any:
    return build_vae(8, 0).eval()


def films() -> torch.Tensor:
    return torch.rand(2, 3, 5, 32, 48, generator=torch.Generator().manual_seed(1)) * 2 - 1


def test_native_names_are_what_diffusers_reads(vae: Any) -> None:
    weights = vae.state_dict()
    native = to_native(weights, VAE_FILE, converted_name)
    assert {"encoder.conv1.weight", "conv2.weight", "encoder.downsamples.0.residual.2.weight"} <= (
        set(native)
    )
    back = convert_wan_vae_to_diffusers(dict(native))
    assert set(back) == set(weights)
    assert all(torch.equal(back[name], weights[name]) for name in weights)


@torch.no_grad()
def test_normalised_latents_have_the_released_statistics_and_the_same_pictures() -> None:
    vae = build_vae(8, 0).eval()
    before = vae.decode(vae.encode(films()).latent_dist.mean).sample
    normalise(vae, *latent_statistics(vae, [films()]))
    mean, std = latent_statistics(vae, [films()])
    assert torch.allclose(mean, torch.tensor(vae.config.latents_mean), atol=1e-3)
    assert torch.allclose(std, torch.tensor(vae.config.latents_std), rtol=1e-3)
    after = vae.decode(vae.encode(films()).latent_dist.mean).sample
    assert torch.allclose(after, before, atol=2e-3)


@torch.no_grad()
def test_the_service_loads_the_native_file_and_sees_what_was_trained(
    vae: Any, tmp_path: Path
) -> None:
    native = to_native(vae.state_dict(), VAE_FILE, converted_name)
    torch.save(native, tmp_path / VAE_FILE)
    device = torch.device("cpu")
    encoder = Encoder.load(tmp_path, device, torch.float32)
    decoder = Decoder.load(tmp_path, device, torch.float32)
    film = films()[0]
    latent = encoder.encode_picture(encoder.open(), film[:, 0])
    moments = vae.encode(film[None, :, :1]).latent_dist.mean[0]
    mean, std = released_statistics(vae)
    assert torch.allclose(latent * std + mean, moments, atol=1e-4)
    frame = decoder.decode(decoder.open(), latent)
    assert torch.allclose(frame, vae.decode(moments[None]).sample[0], atol=1e-4)
