"""Which backend computes attention, and that none of them changes the cache."""

from __future__ import annotations

import sys
import types
from importlib import metadata

import pytest
import torch

from lingbot_triton.world import attention
from lingbot_triton.world.attention import SDPA, attend, choose
from lingbot_triton.world.errors import AttentionError

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")


def exact(query, keys, values, tensor_layout, is_causal):
    assert (tensor_layout, is_causal) == ("NHD", False)
    return attend(query[0], keys[0], values[0]).unflatten(1, query.shape[2:]).unsqueeze(0)


def smoothing(query, keys, values, tensor_layout, is_causal):
    """What 1.0.6 does: the scores' softmax stays, the keys do not."""
    keys -= keys.mean(dim=1, keepdim=True)
    return exact(query, keys, values, tensor_layout, is_causal)


def wrong(query, keys, values, tensor_layout, is_causal):
    return torch.zeros_like(query)


def failing(query, keys, values, tensor_layout, is_causal):
    raise RuntimeError("no kernel image is available")


@pytest.fixture
def install(monkeypatch):
    """Installs a sageattention of the given version, on a device that fits."""

    def installed(sageattn, version: str = "2.2.0") -> None:
        module = types.ModuleType("sageattention")
        module.sageattn = sageattn
        monkeypatch.setitem(sys.modules, "sageattention", module)
        monkeypatch.setattr(metadata, "version", lambda name: version)
        monkeypatch.setattr(attention, "_misfit", lambda *_: None)

    return installed


def tensors(keys: int = 20) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(count, 2, 8, generator=generator) for count in (6, keys, keys)]


def test_attend_is_softmax_of_scores():
    query, keys, values = tensors()
    scores = torch.einsum("shd,thd->hst", query, keys) / 8**0.5
    expected = torch.einsum("hst,thd->shd", scores.softmax(-1), values).flatten(1)
    torch.testing.assert_close(attend(query, keys, values), expected)


def test_torch_is_chosen_unless_told_otherwise(install):
    install(exact)
    assert choose("sdpa", CPU, torch.float32, 8) is SDPA
    assert choose("auto", CPU, torch.float32, 8).name == "sageattention 2.2.0"


@pytest.mark.parametrize("sageattn", [exact, smoothing])
@pytest.mark.parametrize("version", ["1.0.6", "2.2.0"])
def test_sage_gives_attention_and_leaves_the_cache_alone(install, sageattn, version):
    install(sageattn, version)
    backend = choose("sage", CPU, torch.float32, 8)
    assert backend.name == f"sageattention {version}"
    query, keys, values = tensors()
    kept = [keys.clone(), values.clone()]
    out = backend.attend(query, keys[:14], values[:14])
    torch.testing.assert_close(out, attend(query, keys[:14], values[:14]))
    assert torch.equal(keys, kept[0])
    assert torch.equal(values, kept[1])


def test_the_fake_that_smooths_does_change_what_it_is_given():
    query, keys, values = tensors()
    kept = keys.clone()
    smoothing(query[None], keys[None], values[None], "NHD", False)
    assert not torch.equal(keys, kept)


@pytest.mark.parametrize(
    ("sageattn", "message"),
    [
        (wrong, "in a trial sageattention 2.2.0 was off by 1 of the output"),
        (failing, "sageattention 2.2.0 failed a trial: no kernel image is available"),
    ],
)
def test_a_trial_that_fails_is_told_and_auto_goes_on_with_torch(install, sageattn, message):
    install(sageattn)
    with pytest.raises(AttentionError, match=message):
        choose("sage", CPU, torch.float32, 8)
    assert choose("auto", CPU, torch.float32, 8) is SDPA


@pytest.mark.parametrize(
    ("device", "capability", "dtype", "head_dim", "message"),
    [
        (CPU, (0, 0), torch.bfloat16, 128, "needs a CUDA device, not cpu"),
        (CUDA, (7, 5), torch.bfloat16, 128, r"needs compute capability 8.0, cuda:0 has 7.5"),
        (CUDA, (9, 0), torch.float32, 128, "needs dtype float16 or bfloat16, not float32"),
        (CUDA, (9, 0), torch.bfloat16, 24, r"needs a head width of \(64, 96, 128\), not 24"),
        (CUDA, (9, 0), torch.bfloat16, 128, "sageattention is not installed"),
    ],
)
def test_sage_that_cannot_run_says_why(monkeypatch, device, capability, dtype, head_dim, message):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(attention, "_SAGE", "sageattention_that_nobody_has")
    if "not installed" in message:
        message = "sageattention_that_nobody_has is not installed"
    with pytest.raises(AttentionError, match=message):
        choose("sage", device, dtype, head_dim)
    assert choose("auto", device, dtype, head_dim) is SDPA


def test_a_package_that_cannot_be_imported_is_told(install, monkeypatch):
    install(exact)

    def broken(name):
        raise OSError("undefined symbol")

    monkeypatch.setattr(attention, "import_module", broken)
    with pytest.raises(AttentionError, match="importing it failed: undefined symbol"):
        choose("sage", CPU, torch.float32, 8)


def test_unknown_names_list_the_known():
    with pytest.raises(AttentionError, match=r"'flash'; it must be one of auto, sdpa, sage"):
        choose("flash", CPU, torch.float32, 8)
