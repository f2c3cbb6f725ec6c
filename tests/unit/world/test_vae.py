"""Streaming encoder and decoder against diffusers' own whole-video calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLWan

from lingbot_triton.settings import EMBEDDED_CHECKPOINT
from lingbot_triton.world.vae import Decoder, Encoder, Memory, _load, to_uint8

CPU, FLOAT = torch.device("cpu"), torch.float32


@pytest.fixture(scope="module")
def whole():
    parts = ("encoder", "quant_conv", "decoder", "post_quant_conv")
    return _load(EMBEDDED_CHECKPOINT, parts, CPU, FLOAT)


@pytest.fixture(scope="module")
def reference(whole) -> Any:
    """diffusers' VAE with the same weights."""
    vae: Any = AutoencoderKLWan(base_dim=whole.config.base_dim).eval()
    vae.load_state_dict(whole.state_dict())
    return vae


@torch.inference_mode()
def test_encoding_frame_by_frame(whole, reference):
    encoder = Encoder(whole)
    video = torch.zeros(1, 3, 13, 16, 24)
    video[0, :, 0] = torch.rand(3, 16, 24) * 2 - 1
    memory = encoder.open()
    latents = [encoder.encode_picture(memory, video[0, :, 0])]
    latents += [encoder.encode_black_frames(memory, 16, 24) for _ in range(3)]
    raw = torch.cat(latents, dim=1) * encoder.std + encoder.mean
    expected = reference.encode(video).latent_dist.mode()[0]
    torch.testing.assert_close(raw, expected, rtol=0, atol=1e-5)


@torch.inference_mode()
def test_decoding_frame_by_frame(whole, reference):
    decoder = Decoder(whole)
    latent = torch.randn(16, 4, 2, 3)
    memory = decoder.open()
    frames = [decoder.decode(memory, latent[:, index : index + 1]) for index in range(4)]
    assert [part.shape[1] for part in frames] == [1, 4, 4, 4]
    expected = reference.decode((latent * decoder.std + decoder.mean)[None]).sample[0]
    together = torch.cat(frames, dim=1).clamp(-1, 1)
    torch.testing.assert_close(together, expected, rtol=0, atol=1e-5)


@torch.inference_mode()
def test_sessions_do_not_meet(whole):
    decoder = Decoder(whole)
    latents = torch.randn(2, 16, 1, 2, 2)
    alone = decoder.open()
    expected = [decoder.decode(alone, latents[0]) for _ in range(3)]
    one, other = decoder.open(), decoder.open()
    for frames in expected:
        assert torch.equal(decoder.decode(one, latents[0]), frames)
        decoder.decode(other, latents[1])


@torch.inference_mode()
@pytest.mark.parametrize(("height", "width"), [(16, 16), (16, 48), (64, 32)])
def test_the_memory_settles_whatever_the_size(whole, height, width):
    encoder = Encoder(whole)
    memory = encoder.open()
    encoder.encode_picture(memory, torch.rand(3, height, width))
    calls = 0
    while memory.steady is None:
        assert calls < 40
        features = list(memory.features)
        encoder.encode_black_frames(memory, height, width)
        calls += 1
    assert encoder.encode_black_frames(memory, height, width) is memory.steady
    # What a further call would have encoded, from the memory that was given up.
    further = encoder.encode_black_frames(Memory(features, started=True), height, width)
    assert torch.equal(further, memory.steady)


@torch.inference_mode()
def test_half_precision_is_close_and_settles_too(whole):
    frames, latents = [], []
    for dtype in (FLOAT, torch.bfloat16):
        encoder = Encoder.load(EMBEDDED_CHECKPOINT, CPU, dtype)
        memory = encoder.open()
        picture = torch.linspace(-1, 1, 3 * 16 * 24).view(3, 16, 24)
        latents.append(encoder.encode_picture(memory, picture))
        while memory.steady is None:
            encoder.encode_black_frames(memory, 16, 24)
        decoder = Decoder.load(EMBEDDED_CHECKPOINT, CPU, dtype)
        frames.append(decoder.decode(decoder.open(), latents[0]))
    assert (frames[1].dtype, latents[1].dtype) == (torch.bfloat16, FLOAT)
    for exact, rounded in (latents, frames):
        assert 0 < float((rounded - exact).norm() / exact.norm()) < 0.05


def test_a_part_that_is_not_asked_for_is_not_there():
    decoder = _load(EMBEDDED_CHECKPOINT, ("decoder", "post_quant_conv"), CPU, FLOAT)
    assert not any(name.startswith("encoder") for name, _ in decoder.named_parameters())


def test_uint8_cuts_fractions_off_and_stays_in_range():
    values = torch.tensor([-2.0, -1, -0.0001, 0, 0.9999, 1, 3])
    frames = to_uint8(values.view(1, 1, 1, 7).expand(3, 1, 1, 7))
    assert frames.is_contiguous()
    assert frames.shape == (1, 1, 7, 3)
    assert frames[0, 0, :, 0].tolist() == [0, 0, 127, 127, 254, 255, 255]
