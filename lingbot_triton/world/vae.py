"""Wan 2.1's causal video VAE, one latent frame at a time.

The networks are in `vae_network`; their memory of earlier frames, a list of tensors that each call
replaces, belongs to the session. Pixels are float [-1, 1], latents normalised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch

from lingbot_triton.world import checkpoint
from lingbot_triton.world.errors import CheckpointError
from lingbot_triton.world.geometry import TEMPORAL_STRIDE
from lingbot_triton.world.vae_layers import CausalConv3d, Features
from lingbot_triton.world.vae_names import converted_name
from lingbot_triton.world.vae_network import VAEConfig, WanVAE


@dataclass
class Memory:
    """What a session's encoder or decoder has kept of the frames before."""

    features: Features
    """Per layer with a memory its last inputs, None before the first frame."""
    started: bool = False
    steady: torch.Tensor | None = field(default=None)
    """Encoder only: the latent of every later black group, once its memory repeats."""


class Encoder:
    """Pixels to normalised latent frames."""

    def __init__(self, vae: WanVAE) -> None:
        self.network, self.project = vae.encoder, vae.quant_conv
        self.mean, self.std = _statistics(vae)
        self.channels = len(self.mean)

    @classmethod
    def load(cls, root: Path, device: torch.device, dtype: torch.dtype) -> Encoder:
        return cls(_load(root, ("encoder", "quant_conv"), device, dtype))

    def open(self) -> Memory:
        return Memory([None] * self.network.memories)

    def encode_picture(self, memory: Memory, picture: torch.Tensor) -> torch.Tensor:
        """The latent [16, 1, h, w] of a session's first frame [3, H, W]."""
        memory.started = True
        return self.encode(memory, picture.unsqueeze(1))

    def encode_black_frames(
        self, memory: Memory, height: int, width: int, reuse_steady: bool = True
    ) -> torch.Tensor:
        """The latent [16, 1, h, w] of the next four frames, all zeros, of H x W pixels.

        The encoder computes a function of its memory and these constant frames. So when a call
        leaves the memory bit for bit as it was, every later call must return the same bits: the
        latent is kept, the memory given up, and nothing is encoded any more. Without `reuse_steady`
        it goes on encoding all the same, for comparison.
        """
        if memory.steady is not None:
            return memory.steady
        before = list(memory.features)
        weight = self.project.weight
        frames = weight.new_zeros(3, TEMPORAL_STRIDE, height, width)
        latent = self.encode(memory, frames)
        if reuse_steady and _same_bits(before, memory.features):
            memory.steady = latent
            memory.features = []
        return latent

    def encode(self, memory: Memory, frames: torch.Tensor) -> torch.Tensor:
        """The latent [16, 1, h, w] of a session's next frames, [3, n, H, W]: 1 at first, then 4."""
        frames = frames.to(self.project.weight.dtype).unsqueeze(0)
        moments = self.project(self.network(frames, memory.features), []).float()
        latent: torch.Tensor = (moments[0, : self.channels] - self.mean) / self.std
        return latent


class Decoder:
    """Normalised latent frames to pixels."""

    def __init__(self, vae: WanVAE) -> None:
        self.network, self.project = vae.decoder, vae.post_quant_conv
        self.mean, self.std = _statistics(vae)

    @classmethod
    def load(cls, root: Path, device: torch.device, dtype: torch.dtype) -> Decoder:
        return cls(_load(root, ("decoder", "post_quant_conv"), device, dtype))

    def open(self) -> Memory:
        return Memory([None] * self.network.memories)

    def decode(self, memory: Memory, latent: torch.Tensor) -> torch.Tensor:
        """Frames [3, n, H, W] of one latent frame [16, 1, h, w]: n is 1 at first, then 4."""
        scaled = (latent * self.std + self.mean).to(self.project.weight.dtype).unsqueeze(0)
        frames: torch.Tensor = self.network(self.project(scaled, []), memory.features)
        return frames[0]


def to_uint8(frames: torch.Tensor) -> torch.Tensor:
    """[3, n, H, W] in [-1, 1] to contiguous uint8 [n, H, W, 3]; fractions are cut off."""
    levels = frames.float().add(1).mul_(127.5).clamp_(0, 255)
    return levels.permute(1, 2, 3, 0).to(torch.uint8, memory_format=torch.contiguous_format)


def _same_bits(one: Features, other: Features) -> bool:
    """Compared from the last convolution backwards: the deepest is steady last."""
    for a, b in zip(reversed(one), reversed(other), strict=True):
        if a is None and b is None:
            continue
        if a is None or b is None or a.shape != b.shape:
            return False
        if not torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)):
            return False
    return True


def _statistics(vae: WanVAE) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and deviation of raw latents, float32 [16, 1, 1, 1], on the weights' device."""
    device = next(vae.parameters()).device
    mean, std = (
        torch.tensor(values, dtype=torch.float32, device=device).view(-1, 1, 1, 1)
        for values in (vae.config.latents_mean, vae.config.latents_std)
    )
    return mean, std


def skeleton(root: Path) -> tuple[WanVAE, dict[str, torch.Tensor], Path]:
    """A checkpoint's networks on the meta device, its weights, mapped, and their path.

    Raises CheckpointError where there is none, or it is no Wan 2.1 VAE.
    """
    path = checkpoint.find_vae(root)
    if path.is_dir():
        config = checkpoint.read_json(path / "config.json")
        weights = {
            name: tensor
            for file in checkpoint.weight_files(path)
            for name, tensor in checkpoint.read(file, torch.device("cpu"))
        }
    else:
        native = dict(checkpoint.read(path, torch.device("cpu")))
        if "encoder.conv1.weight" not in native or "conv2.weight" not in native:
            raise CheckpointError(f"{path} holds no Wan 2.1 VAE: encoder.conv1 or conv2 is missing")
        config = {"base_dim": native["encoder.conv1.weight"].shape[0]}
        config["z_dim"] = native["conv2.weight"].shape[0]
        weights = {converted_name(name): tensor for name, tensor in native.items()}
    try:
        shape = VAEConfig.read(config)
    except ValueError as error:
        raise CheckpointError(f"{path} holds no Wan 2.1 VAE: {error}") from None
    with torch.device("meta"):
        vae = WanVAE(shape)
    return vae.eval(), weights, path


def session_memory(root: Path, dtype: torch.dtype) -> Callable[[int, int], int]:
    """Tells what one session's encoder and decoder keep together of frames of H x W pixels.

    Raises CheckpointError where the checkpoint holds no Wan 2.1 VAE.
    """
    vae, _, _ = skeleton(root)

    @cache
    def needed(height: int, width: int) -> int:
        return sum(memory_bytes(vae, height, width, dtype.itemsize))

    return needed


def memory_bytes(vae: WanVAE, height: int, width: int, itemsize: int) -> tuple[int, int]:
    """What a session's encoder and decoder keep of earlier frames of H x W pixels.

    `vae` is a `skeleton`: shapes are enough to know.
    """
    frame = torch.empty(3, height, width, device="meta")
    latent = torch.empty(vae.config.z_dim, 1, height // 8, width // 8, device="meta")
    encoder, decoder = Encoder(vae), Decoder(vae)
    memories = encoder.open(), decoder.open()
    encoder.encode_picture(memories[0], frame)
    for _ in range(2):
        encoder.encode(memories[0], frame.unsqueeze(1).expand(-1, TEMPORAL_STRIDE, -1, -1))
        decoder.decode(memories[1], latent)
    kept, shown = (
        sum(part.numel() for part in memory.features if isinstance(part, torch.Tensor)) * itemsize
        for memory in memories
    )
    return kept, shown


def _load(root: Path, parts: tuple[str, ...], device: torch.device, dtype: torch.dtype) -> WanVAE:
    """The networks, of which only `parts` are there."""
    vae, weights, path = skeleton(root)
    for name in {"encoder", "quant_conv", "decoder", "post_quant_conv"} - set(parts):
        delattr(vae, name)

    def wanted() -> Iterator[tuple[str, torch.Tensor]]:
        unused = ("encoder.", "quant_conv.", "decoder.", "post_quant_conv.")
        drop = tuple(prefix for prefix in unused if prefix[:-1] not in parts)
        return ((name, tensor) for name, tensor in weights.items() if not name.startswith(drop))

    checkpoint.load(vae, wanted(), device, lambda _: dtype, str(path))
    if device.type == "cpu" and dtype == torch.float32:
        # For few channels torch takes a kernel of its own that is up to twenty times slower.
        for module in vae.modules():
            if isinstance(module, CausalConv3d):
                module.use_onednn = True
    return vae
