"""Cleaning and counting prompts."""

from __future__ import annotations

import pytest
import torch

from lingbot_triton.world.errors import InputError
from lingbot_triton.world.text import TextEncoder, clean_prompt
from tests.checkpoints import GOLDEN_CHECKPOINT


@pytest.fixture(scope="module")
def encoder() -> TextEncoder:
    return TextEncoder.load(GOLDEN_CHECKPOINT, torch.device("cpu"), torch.float32)


@pytest.mark.parametrize(
    ("prompt", "cleaned"),
    [
        ("  a \n\t b  ", "a b"),
        ("rain &amp; snow", "rain & snow"),
        ("rain &amp;amp; snow", "rain & snow"),
        ("cafÃ©", "café"),
        ("", ""),
    ],
)
def test_cleaning(prompt, cleaned):
    assert clean_prompt(prompt) == cleaned


def test_the_longest_prompt_fits_and_the_next_does_not(encoder):
    per_letter = len(encoder.tokenize("aaaa")) - len(encoder.tokenize("aaa"))
    longest = "a" * 2000
    while len(ids := encoder.tokenizer.encode(longest).ids) > 512:
        longest = longest[:-1]
    assert per_letter <= 1
    assert len(encoder.tokenize(longest)) == len(ids) == 512
    with pytest.raises(InputError, match="has 513 tokens; at most 512"):
        encoder.tokenize(longest + "a")


def test_embeddings_have_the_prompts_real_length(encoder):
    with torch.inference_mode():
        assert encoder.encode("").shape == (1, 64)
        assert len(encoder.encode("a hill")) == len(encoder.tokenize("a hill"))
