"""The four stages: a stage holds weights, a session's state goes in and comes out of each call.

Arrays between stages are plain CPU numpy arrays under the tensor names of `protocol`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from lingbot_triton.world.family import ModelFamily

Arrays = dict[str, np.ndarray[Any, Any]]
Parameters = Mapping[str, str | int | bool]


def chunk_latent_frames(parameters: Parameters, family: ModelFamily) -> int:
    """Latent frames of a session's chunks, as `open` is told, or else the family's."""
    return int(parameters.get("chunk_latent_frames", family.chunk_latent_frames))


class SessionStage(Protocol):
    """What the Triton layer needs of `condition`, `denoise` and `decode`.

    `state` is whatever `open` returned; a stage keeps nothing of a session on itself. Input that
    cannot be used raises `errors.BadRequest`, anything else that goes wrong is a stage failure.
    """

    def open(self, arrays: Arrays, parameters: Parameters) -> Any:
        """Allocate and return one session's state."""

    def step(self, state: Any, arrays: Arrays, parameters: Parameters) -> Arrays:
        """Do the next piece of work of the session and return its outputs."""

    def commit(self, state: Any) -> None:
        """Work that the last step left for later; nothing for most stages."""

    def close(self, state: Any) -> None:
        """Give back what the state holds."""
