"""Layers of Wan 2.1's causal video VAE, after diffusers' AutoencoderKLWan; see `vae_network`.

Tensors are [1, c, n, h, w]. A causal layer that looks back on earlier frames finds their features
in a list of the session's, at its own index, and leaves the newest there.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

Features = list[torch.Tensor | None]
"""Per layer with a memory what it has kept of earlier frames; None before the first frame."""

_KEPT_FRAMES = 2
"""Earlier frames that a convolution over three frames sees."""


class CausalConv3d(nn.Conv3d):
    """Convolution whose output frames see earlier frames only; 3 frames wide it has a memory."""

    slot = -1
    """Index of its memory in the session's list."""
    use_onednn = False

    def __init__(self, channels: int, out: int, kernel: int, pad: int = 0) -> None:
        super().__init__(channels, out, kernel)
        self.spatial = (pad,) * 4

    def forward(self, x: torch.Tensor, features: Features) -> torch.Tensor:  # type: ignore[override]
        missing = 0
        if self.kernel_size[0] > 1:
            before, missing = features[self.slot], _KEPT_FRAMES
            newest = x[:, :, -_KEPT_FRAMES:].clone()
            if before is not None:
                if newest.shape[2] < _KEPT_FRAMES:
                    newest = torch.cat((before[:, :, -1:], newest), 2)
                x = torch.cat((before, x), 2)
                missing -= before.shape[2]
            features[self.slot] = newest
        padded = functional.pad(x, (*self.spatial, missing, 0))
        return self.convolve(padded)

    def convolve(self, x: torch.Tensor) -> torch.Tensor:
        """The plain convolution of frames that are padded already."""
        result: torch.Tensor
        if self.use_onednn:
            result = torch.ops.aten.mkldnn_convolution(
                x, self.weight, self.bias, (0, 0, 0), self.stride, self.dilation, self.groups
            )
        else:
            result = self._conv_forward(x, self.weight, self.bias)
        return result


class RMSNorm(nn.Module):
    """Root-mean-square norm over channels; `ones` is how many axes follow them."""

    def __init__(self, dim: int, ones: int = 3) -> None:
        super().__init__()
        self.scale = dim**0.5
        self.gamma = nn.Parameter(torch.ones(dim, *[1] * ones))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        normalised: torch.Tensor = functional.normalize(wide, dim=1).to(x.dtype)
        out: torch.Tensor = normalised * self.scale * self.gamma
        return out


class ResidualBlock(nn.Module):
    """Norm, SiLU and causal convolution, twice."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = RMSNorm(channels), CausalConv3d(channels, out, 3, 1)
        self.norm2, self.conv2 = RMSNorm(out), CausalConv3d(out, out, 3, 1)
        self.conv_shortcut = CausalConv3d(channels, out, 1) if channels != out else None

    def forward(self, x: torch.Tensor, features: Features) -> torch.Tensor:
        h = x if self.conv_shortcut is None else self.conv_shortcut(x, features)
        x = self.conv1(functional.silu(self.norm1(x)), features)
        out: torch.Tensor = self.conv2(functional.silu(self.norm2(x)), features)
        return out + h


class AttentionBlock(nn.Module):
    """Self attention with one head, within each frame."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = RMSNorm(dim, 2)
        self.to_qkv, self.proj = nn.Conv2d(dim, dim * 3, 1), nn.Conv2d(dim, dim, 1)

    def forward(self, x: torch.Tensor, features: Features) -> torch.Tensor:
        frames = _to_frames(x)
        n, channels, height, width = frames.shape
        qkv = self.to_qkv(self.norm(frames)).reshape(n, 1, channels * 3, -1)
        query, key, value = qkv.permute(0, 1, 3, 2).contiguous().chunk(3, dim=-1)
        out = functional.scaled_dot_product_attention(query, key, value)
        out = out.squeeze(1).permute(0, 2, 1).reshape(n, channels, height, width)
        return _to_video(self.proj(out)) + x


class Downsample(nn.Module):
    """Half the height and width, and half the frames where it is `temporal`."""

    slot = -1

    def __init__(self, dim: int, temporal: bool) -> None:
        super().__init__()
        self.resample = nn.Sequential(
            nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(dim, dim, 3, stride=(2, 2))
        )
        self.time_conv = TimeConv3d(dim, dim, stride=2) if temporal else None

    def forward(self, x: torch.Tensor, features: Features) -> torch.Tensor:
        x = _to_video(self.resample(_to_frames(x)))
        if self.time_conv is None:
            return x
        before, features[self.slot] = features[self.slot], x[:, :, -1:].clone()
        return x if before is None else self.time_conv.convolve(torch.cat((before, x), 2))


class Upsample(nn.Module):
    """Double height and width at half the channels, and double frames where it is `temporal`."""

    slot = -1

    def __init__(self, dim: int, temporal: bool) -> None:
        super().__init__()
        self.resample = nn.Sequential(_Nearest(), nn.Conv2d(dim, dim // 2, 3, padding=1))
        self.time_conv = TimeConv3d(dim, dim * 2) if temporal else None

    def forward(self, x: torch.Tensor, features: Features) -> torch.Tensor:
        if self.time_conv is not None:
            before = features[self.slot]
            if before is None:  # the first frame stays a single one, and is not looked back on
                features[self.slot] = torch.zeros_like(x).repeat(1, 1, _KEPT_FRAMES, 1, 1)
            else:
                seen = torch.cat((before, x), 2)
                features[self.slot] = seen[:, :, -_KEPT_FRAMES:].clone()
                x = _interleave(self.time_conv.convolve(seen))
        return _to_video(self.resample(_to_frames(x)))


class TimeConv3d(CausalConv3d):
    """Convolution over three frames alone, whose owner keeps what it looks back on."""

    def __init__(self, channels: int, out: int, stride: int = 1) -> None:
        nn.Conv3d.__init__(self, channels, out, (3, 1, 1), (stride, 1, 1))


class _Nearest(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = functional.interpolate(x.float(), scale_factor=(2.0, 2.0), mode="nearest-exact")
        return wide.type_as(x)


def _to_frames(x: torch.Tensor) -> torch.Tensor:
    """[1, c, n, h, w] to [n, c, h, w]."""
    return x.permute(0, 2, 1, 3, 4).reshape(x.shape[2], x.shape[1], *x.shape[3:])


def _to_video(frames: torch.Tensor) -> torch.Tensor:
    """[n, c, h, w] to [1, c, n, h, w]."""
    return frames.unsqueeze(0).permute(0, 2, 1, 3, 4)


def _interleave(x: torch.Tensor) -> torch.Tensor:
    """[1, 2 c, n, h, w] to [1, c, 2 n, h, w]: two output frames of each."""
    _, channels, frames, height, width = x.shape
    pairs = x.reshape(1, 2, channels // 2, frames, height, width)
    stacked = torch.stack((pairs[:, 0], pairs[:, 1]), 3)
    return stacked.reshape(1, channels // 2, frames * 2, height, width)
