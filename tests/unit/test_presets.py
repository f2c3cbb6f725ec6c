"""Presets, and the settings that choose them and what computes."""

from __future__ import annotations

import pytest

from lingbot_triton.options import SessionOptions
from lingbot_triton.presets import FAST, PRESETS, find_preset
from lingbot_triton.settings import Settings, SettingsError
from lingbot_triton.world import attention


def load(**given: str) -> Settings:
    return Settings.load(environ={f"LINGBOT_{name.upper()}": text for name, text in given.items()})


def test_the_default_is_what_was_released():
    assert load().preset == "fast"
    assert FAST.step_indices == (0, 179, 358, 679)
    assert FAST.options(480 * 832) == SessionOptions()


def test_presets_keep_the_released_steps_unless_they_say_that_they_are_lossy():
    assert [preset.name for preset in PRESETS.values()] == ["fast", "window15", "one-step"]
    for preset in PRESETS.values():
        assert preset.lossy == (preset.step_indices != FAST.step_indices)


def test_a_preset_gives_the_defaults_of_sessions():
    defaults = load(preset="window15", max_area="9216").session_defaults
    assert (defaults.kv_window_frames, defaults.kv_sink_frames) == (15, 3)
    assert (defaults.max_area, defaults.shift) == (9216, 10.0)


@pytest.mark.parametrize(
    ("given", "window", "sinks"),
    [
        ("{}", 15, 3),
        ('{"kv_window_frames": 4}', 4, 0),
        ('{"kv_window_frames": null}', None, 0),
        ('{"kv_sink_frames": 6}', 15, 6),
        ('{"kv_window_frames": 9, "kv_sink_frames": 2}', 9, 2),
    ],
)
def test_clients_may_choose_another_window(given, window, sinks):
    options = SessionOptions.parse(given, find_preset("window15").options(9216))
    assert (options.kv_window_frames, options.kv_sink_frames) == (window, sinks)


def test_unknown_presets_list_the_known_ones():
    known = "it must be one of fast, window15, one-step"
    with pytest.raises(SettingsError, match=f"preset is 'slow'; {known}"):
        load(preset="slow")
    with pytest.raises(ValueError, match=f"preset is 'slow'; {known}"):
        find_preset("slow")


@pytest.mark.parametrize(
    ("name", "text"),
    [("attention", "flash"), ("dtype", "int8"), ("vae_dtype", "half"), ("compile", "maybe")],
)
def test_settings_of_few_words_take_no_others(name, text):
    with pytest.raises(SettingsError, match=f"{name} is '{text}'; it must be"):
        load(**{name: text})


def test_every_choice_of_attention_is_one_that_can_be_made():
    assert Settings.properties()["attention"]["enum"] == list(attention.CHOICES)


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("1", True), ("False", False), ("0", False)]
)
def test_yes_and_no(text, value):
    assert load(compile=text).compile is value
