"""Inference mode is a property of the thread: every call must enter it in its own."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from lingbot_triton.options import SessionOptions

SIZE = {"height": 16, "width": 32}


@pytest.fixture
def watch():
    """Records, for every module that runs, whether its thread was in inference mode."""
    hooks, seen = [], []

    def start(*networks: torch.nn.Module) -> list[bool]:
        for network in networks:
            for module in network.modules():
                hooks.append(
                    module.register_forward_pre_hook(
                        lambda *_: seen.append(torch.is_inference_mode_enabled())
                    )
                )
        return seen

    yield start
    for hook in hooks:
        hook.remove()


def in_fresh_thread(call):
    """`call()` in a thread of its own; returns its result, raises what it raised."""
    result = []

    def run():
        try:
            assert not torch.is_inference_mode_enabled()
            result.append((call(), None))
        except BaseException as error:
            result.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    value, error = result[0]
    if error is not None:
        raise error
    return value


def drain(seen: list[bool]) -> tuple[bool, int]:
    """Whether all modules since the last call ran in inference mode, and how many ran."""
    outcome = all(seen), len(seen)
    seen.clear()
    return outcome


def test_prompt(watch, prompt_stage):
    seen = watch(prompt_stage.encoder.encoder)
    in_fresh_thread(lambda: prompt_stage.encode("a hill"))
    good, calls = drain(seen)
    assert calls > 0
    assert good


def test_condition(watch, condition_stage, picture):
    seen = watch(condition_stage.encoder.network, condition_stage.encoder.project)
    state = in_fresh_thread(lambda: condition_stage.open({"picture": picture}, SIZE))
    assert state.picture.is_inference()
    for _ in range(2):
        in_fresh_thread(lambda: condition_stage.step(state, {}, {}))
        good, calls = drain(seen)
        assert calls > 0
        assert good
    in_fresh_thread(lambda: condition_stage.commit(state))
    in_fresh_thread(lambda: condition_stage.close(state))


def test_denoise(watch, denoise_stage, context, condition):
    seen = watch(denoise_stage.network)
    parameters = {"options": SessionOptions(chunk_count=2).to_json(), **SIZE}
    state = in_fresh_thread(lambda: denoise_stage.open({"context": context}, parameters))
    checked = [drain(seen)]
    for index in range(2):
        step = {"chunk_index": index, "keys": "w"}
        in_fresh_thread(lambda: denoise_stage.step(state, {"condition": condition}, step))  # noqa: B023
        checked.append(drain(seen))
        in_fresh_thread(lambda: denoise_stage.commit(state))
        checked.append(drain(seen))
    assert all(calls > 0 for _, calls in checked)
    assert all(good for good, _ in checked)
    in_fresh_thread(lambda: denoise_stage.close(state))


def test_decode(watch, decode_stage):
    seen = watch(decode_stage.decoder.network, decode_stage.decoder.project)
    state = in_fresh_thread(lambda: decode_stage.open({}, {}))
    latent = np.zeros((16, 1, 2, 4), np.float32)
    for _ in range(2):
        in_fresh_thread(lambda: decode_stage.step(state, {"latent": latent}, {}))
        good, calls = drain(seen)
        assert calls > 0
        assert good
    in_fresh_thread(lambda: decode_stage.close(state))
