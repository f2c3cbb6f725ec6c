"""What can be wrong with a checkpoint, and with what is to compute it."""

from __future__ import annotations


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message names the file and what was expected of it."""


class AttentionError(ValueError):
    """An attention backend that cannot run here; the message says why."""
