"""The VAE with random weights: encoding black frames, decoding latent ones."""

from __future__ import annotations

from typing import Any

import torch

from lingbot_tools.gpu_check.cases import Case
from lingbot_tools.gpu_check.timing import mean_ms, peak_bytes, reset_peak
from lingbot_triton.world.family import WORLD_FAST
from lingbot_triton.world.geometry import TEMPORAL_STRIDE
from lingbot_triton.world.vae import Decoder, Encoder, to_uint8
from lingbot_triton.world.vae_network import VAEConfig, WanVAE

CHUNK = WORLD_FAST.chunk_latent_frames


@torch.inference_mode()
def measure(case: Case, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Milliseconds of encoding a chunk's condition, and of decoding one latent frame to uint8."""
    torch.manual_seed(0)
    with torch.device(device):
        vae = WanVAE(VAEConfig(base_dim=case.vae_width))
    vae.to(dtype).eval().requires_grad_(False)
    reset_peak(device)
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
        "dtype": str(dtype).removeprefix("torch."),
        "encode_chunk_ms": mean_ms(encode_chunk, case.repeats),
        "decode_frame_ms": mean_ms(decode_frame, case.repeats),
        "session_bytes": sum(
            part.nbytes
            for part in (*written.features, *shown.features)
            if isinstance(part, torch.Tensor)
        ),
        "peak_bytes": peak_bytes(device),
    }
