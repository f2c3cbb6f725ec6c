"""The VAE with random weights: encoding black frames, decoding latent ones."""

from __future__ import annotations

import torch

from lingbot_tools.gpu_check.cases import CHUNK, Case
from lingbot_tools.gpu_check.timing import mean_ms
from lingbot_triton.world.geometry import TEMPORAL_STRIDE
from lingbot_triton.world.vae import Decoder, Encoder, to_uint8
from lingbot_triton.world.vae_network import VAEConfig, WanVAE


@torch.inference_mode()
def measure(case: Case, device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """Milliseconds of encoding a chunk's condition, and of decoding one latent frame to uint8."""
    torch.manual_seed(0)
    with torch.device(device):
        vae = WanVAE(VAEConfig(base_dim=case.vae_width))
    vae.to(dtype).eval().requires_grad_(False)
    height, width = case.geometry.height, case.geometry.width
    encoder, decoder = Encoder(vae), Decoder(vae)
    written, shown = encoder.open(), decoder.open()
    encoder.encode_picture(written, torch.zeros(3, height, width, device=device))
    black = torch.zeros(3, TEMPORAL_STRIDE, height, width, device=device)
    latent = torch.randn(16, 1, *case.geometry.latent, device=device)

    def encode_chunk() -> None:
        for _ in range(CHUNK):
            encoder.encode(written, black)

    def decode_frame() -> None:
        to_uint8(decoder.decode(shown, latent)).cpu()

    decode_frame()  # a session's first frame is another one
    return {
        "encode_chunk_ms": mean_ms(encode_chunk, case.repeats),
        "decode_frame_ms": mean_ms(decode_frame, case.repeats),
    }
