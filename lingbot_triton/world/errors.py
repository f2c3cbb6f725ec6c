"""What can be wrong with a checkpoint, with what is to compute it, and with its input."""

from __future__ import annotations


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message names the file and what was expected of it."""


class AttentionError(ValueError):
    """An attention backend that cannot run here; the message says why."""


class InputError(ValueError):
    """Input that the network cannot take; the message says what was given and what is needed."""
