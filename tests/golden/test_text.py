"""Prompts: token ids exactly, embeddings closely."""

from __future__ import annotations

import numpy as np


def test_token_ids_are_exact(golden):
    prompts, expected = golden.json("text_prompts"), golden.file("text")
    assert [golden.prompt.encoder.tokenize(prompt) for prompt in prompts] == [
        expected[f"ids_{index}"].tolist() for index in range(len(prompts))
    ]


def test_contexts_agree(golden):
    expected = golden.file("text")
    for index, prompt in enumerate(golden.json("text_prompts")):
        context = golden.prompt.encode(prompt)
        assert context.dtype == np.float32
        np.testing.assert_allclose(context, expected[f"context_{index}"], rtol=0, atol=1e-5)
