"""The compiled functions against the plain ones, and that nothing compiles late."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from lingbot_triton.world.kernels import Kernels, norm_rope, norm_rope_real
from lingbot_triton.world.rope import rope_frequencies

DIM, HEADS, EPS = 48, 2, 1e-6


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotation_without_complex_numbers_is_the_same(dtype):
    x, weight = random(12, DIM).to(dtype), random(DIM, seed=1).to(dtype)
    freqs_cis = rope_frequencies(DIM // HEADS, 5, 3, 2, 2, torch.device("cpu"))
    real = norm_rope_real(x.clone(), weight, torch.view_as_real(freqs_cis), HEADS, EPS)
    expected = norm_rope(x.clone(), weight, freqs_cis, HEADS, EPS)
    tolerance = 1e-6 if dtype == torch.float32 else 0.03
    assert real.dtype == dtype
    torch.testing.assert_close(real, expected, rtol=tolerance, atol=tolerance)


@torch.inference_mode()
def call_all(kernels: Kernels, tokens: int) -> list[torch.Tensor]:
    rows = [random(DIM, seed=seed) for seed in range(6)]
    x, out = random(tokens, DIM, seed=7), random(tokens, DIM, seed=8)
    camera = (random(tokens, DIM, seed=9), random(tokens, DIM, seed=10))
    freqs_cis = rope_frequencies(DIM // HEADS, 1, 1, 1, tokens, torch.device("cpu"))
    return [
        kernels.modulate(x, rows[0], rows[1], EPS, torch.bfloat16),
        kernels.norm_rope(x.clone(), rows[2], freqs_cis, HEADS, EPS),
        kernels.query_norm(x.clone(), EPS),
        kernels.gate_camera_norm(x, out, rows[3], camera, (rows[4], rows[5]), EPS),
        kernels.residual_modulate(x, out, rows[0], rows[1], EPS),
        x,
    ]


@pytest.mark.usefixtures("nothing_compiled")
def test_compiled_functions_agree_and_two_sizes_are_enough_for_all():
    counter = CompileCounterWithBackend("aot_eager")
    plain, compiled = Kernels(), Kernels.compile(backend=counter)
    assert (plain.compiled, compiled.compiled) == (False, True)
    counts = []
    for tokens in (12, 20, 32, 27):
        for mine, expected in zip(call_all(compiled, tokens), call_all(plain, tokens), strict=True):
            torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-5)
        counts.append(counter.frame_count)
    assert counts == [5, 10, 10, 10]
