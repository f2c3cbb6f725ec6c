"""Work done before a model reports ready, so that no user waits for what is done only once.

On a GPU a kernel's first call loads it, and libraries take their workspaces; compiled functions
are compiled. A warm-up plays what real sessions play, and leaves nothing behind.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lingbot_triton.errors import SessionLimit
from lingbot_triton.options import SessionOptions
from lingbot_triton.settings import Settings
from lingbot_triton.stages import Arrays, Parameters, SessionStage
from lingbot_triton.stages.budget import ran_out
from lingbot_triton.stages.compute import find_device
from lingbot_triton.world.family import ModelFamily
from lingbot_triton.world.geometry import Geometry

if TYPE_CHECKING:  # a worker imports its own libraries only
    from lingbot_triton.world.vae import Encoder

log = logging.getLogger(__name__)

_PICTURES = ((9, 16), (3, 4), (1, 1))
"""Shapes of pictures, the usual one first."""
_CONTEXT_TOKENS = 16
_VAE_CHUNKS = 2
"""The first chunk begins with single frames, the second is like all later ones."""


def needed(settings: Settings) -> bool:
    """Whether there is anything that only a first call does, and that takes long."""
    return settings.compile or find_device(settings.device).type == "cuda"


def geometries(area: int) -> tuple[Geometry, Geometry]:
    """The usual size of frames, and one with another number of tokens.

    A function that was compiled for two sizes takes any other as it comes.
    """
    usual, *others = (Geometry.fit(height, width, area) for height, width in _PICTURES)
    tokens = usual.tokens_per_frame
    other = next((size for size in others if size.tokens_per_frame != tokens), others[-1])
    return usual, other


def chunks_to_play(options: SessionOptions, chunk_frames: int) -> int:
    """Chunks until every later one is like the last: the cache is full, and has wrapped."""
    if not options.endless:
        return options.chunk_count
    return -(-options.cache_latent_frames(chunk_frames) // chunk_frames) + 1


def warm_denoise(
    stage: SessionStage, text_dim: int, options: SessionOptions, family: ModelFamily
) -> None:
    """Whole sessions: of the usual size until the window is full, of another one for a chunk.

    Where there is no memory for that, one with the smallest window is played, which computes with
    the same kernels. If even that does not fit it is told, and is no error.
    """
    started = time.monotonic()
    usual, other = geometries(options.max_area)
    frames = family.chunk_latent_frames
    least = options.replace(kv_window_frames=2 * frames, kv_sink_frames=0)
    for played in (options, least):
        try:
            _play_denoise(stage, text_dim, played, usual, chunks_to_play(played, frames), frames)
            _play_denoise(stage, text_dim, played, other, 1, frames)
        except Exception as error:
            if not (isinstance(error, SessionLimit) or ran_out(error)):
                raise
            log.warning("the warm-up of denoise was cut short: %s", error)
        else:
            log.info("denoise is warm after %.1f s", time.monotonic() - started)
            return


def _play_denoise(
    stage: SessionStage,
    text_dim: int,
    options: SessionOptions,
    geometry: Geometry,
    chunks: int,
    chunk_frames: int,
) -> None:
    size: dict[str, Any] = {"height": geometry.height, "width": geometry.width}
    size["chunk_latent_frames"] = chunk_frames
    context = np.zeros((_CONTEXT_TOKENS, text_dim), np.float32)
    inputs: Arrays = {"condition": np.zeros((20, chunk_frames, *geometry.latent), np.float32)}
    state = stage.open({"context": context}, {"options": options.to_json(), **size})
    try:
        for chunk in range(chunks):
            parameters: Parameters = {"chunk_index": chunk, "keys": "w"}
            stage.step(state, inputs, parameters)
            stage.commit(state)
    finally:
        stage.close(state)


@torch.inference_mode()
def warm_encoder(encoder: Encoder, area: int, chunk_frames: int) -> None:
    """A picture and the black frames after it."""
    geometry = geometries(area)[0]
    height, width = geometry.height, geometry.width
    memory = encoder.open()
    encoder.encode_picture(memory, encoder.mean.new_zeros(3, height, width))
    for _ in range(_VAE_CHUNKS * chunk_frames - 1):
        encoder.encode_black_frames(memory, height, width)


def warm_decode(stage: SessionStage, area: int, chunk_frames: int) -> None:
    """Latent frames one at a time, as they are decoded."""
    geometry = geometries(area)[0]
    state = stage.open({}, {})
    for _ in range(_VAE_CHUNKS * chunk_frames):
        stage.step(state, {"latent": np.zeros((16, 1, *geometry.latent), np.float32)}, {})
    stage.close(state)
