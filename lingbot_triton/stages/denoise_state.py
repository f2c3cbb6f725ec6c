"""What the denoise stage keeps of one session."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import NDArray

from lingbot_triton.errors import BadRequest
from lingbot_triton.options import SessionOptions
from lingbot_triton.world.camera import Camera, Poses, pixel_intrinsics, relative_poses
from lingbot_triton.world.control import rays
from lingbot_triton.world.dit import Modulation, WorldTransformer
from lingbot_triton.world.geometry import PATCH, Geometry
from lingbot_triton.world.kv_cache import KVCache
from lingbot_triton.world.layers import SessionCaches
from lingbot_triton.world.schedule import COMMIT_TIMESTEP, Noise, Schedule


@dataclass
class DenoiseState:
    """One session: its caches, its camera, its random streams."""

    options: SessionOptions
    geometry: Geometry
    schedule: Schedule
    modulations: dict[int, Modulation]
    """By timestep: those of the schedule and the commit's."""
    caches: SessionCaches
    camera: Camera
    directions: torch.Tensor
    stream: Noise
    sample: torch.Tensor
    """Network input [36, n, h, w]: 16 channels that are denoised, then the condition."""
    latent_channels: int
    noise: list[torch.Tensor] = field(default_factory=list)
    last_pose: Poses | None = None
    chunk_index: int = 0
    uncommitted: bool = False
    reserved: int = 0
    """Bytes of the memory budget that the session was promised."""

    def draw_noise(self) -> None:
        """Draw the next chunk's noise from the session's random streams."""
        shape = (self.latent_channels, *self.sample.shape[1:])
        self.noise = self.stream.draw(shape, self.sample.device)

    def follow(self, given_poses: NDArray[Any] | None, keys: str) -> Poses:
        """Move the camera; the chunk's poses relative to one another, scaled."""
        if given_poses is None:
            poses = self.camera.follow_keys(keys, self.options)
        else:
            poses = self.camera.follow_poses(given_poses)
        relative = relative_poses(poses, self.last_pose, self.options.translation_scale)
        self.last_pose = poses[-1]
        return relative


def open_state(
    network: WorldTransformer,
    context: torch.Tensor,
    options: SessionOptions,
    geometry: Geometry,
    chunk_frames: int,
    step_indices: tuple[int, ...],
) -> DenoiseState:
    """A session's state from its prompt's embedding, float32 [tokens, text_dim], on the device.

    Raises BadRequest for an embedding of another shape.
    """
    config, device = network.config, context.device
    if (
        context.ndim != 2
        or context.shape[0] > config.text_len
        or context.shape[1] != config.text_dim
    ):
        raise BadRequest(
            f"the context is {list(context.shape)}; it must be [at most {config.text_len}, "
            f"{config.text_dim}]"
        )
    height, width = geometry.latent
    grid = (chunk_frames, height // PATCH, width // PATCH)
    schedule = Schedule.shifted(options.shift, step_indices)
    intrinsics = pixel_intrinsics(options.intrinsics, options.intrinsics_size, geometry)
    state = DenoiseState(
        options=options,
        geometry=geometry,
        schedule=schedule,
        modulations={
            timestep: network.modulation(timestep)
            for timestep in (*schedule.timesteps, COMMIT_TIMESTEP)
        },
        caches=network.open(
            context, _allocate(network, options, geometry, chunk_frames, device), grid
        ),
        camera=Camera(chunk_frames),
        directions=rays(intrinsics, geometry, device),
        stream=Noise(options.seed, len(schedule.timesteps)),
        sample=torch.zeros(config.in_dim, chunk_frames, height, width, device=device),
        latent_channels=config.out_dim,
    )
    state.draw_noise()
    return state


def _allocate(
    network: WorldTransformer,
    options: SessionOptions,
    geometry: Geometry,
    chunk_frames: int,
    device: torch.device,
) -> KVCache:
    config = network.config
    return KVCache(
        layers=config.num_layers,
        frames=options.cache_latent_frames(chunk_frames),
        tokens_per_frame=geometry.tokens_per_frame,
        heads=config.num_heads,
        head_dim=config.head_dim,
        dtype=network.dtype,
        device=device,
        rolling=options.endless,
        sink_frames=options.kv_sink_frames,
    )
