"""The prompt stage."""

from __future__ import annotations

import numpy as np
import pytest

from lingbot_triton.world.errors import InputError


def test_prompt_becomes_a_float32_array(prompt_stage):
    context = prompt_stage.encode("a castle")
    assert (context.dtype, context.ndim, context.shape[1]) == (np.float32, 2, 64)


def test_the_same_prompt_gives_the_same_bits(prompt_stage):
    np.testing.assert_array_equal(prompt_stage.encode("a hill"), prompt_stage.encode(" a  hill"))


def test_a_prompt_is_encoded_once(prompt_stage, monkeypatch):
    context = prompt_stage.encode("a tower")
    monkeypatch.setattr(prompt_stage.encoder, "encode", None)
    assert prompt_stage.encode("a tower") is context
    assert not context.flags.writeable


def test_a_prompt_too_long_is_refused_every_time(prompt_stage):
    for _ in range(2):
        with pytest.raises(InputError, match="at most 512"):
            prompt_stage.encode("word, " * 600)
