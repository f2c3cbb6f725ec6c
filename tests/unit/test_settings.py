"""Settings from the environment and from model configurations."""

from __future__ import annotations

import pytest

from lingbot_triton.settings import EMBEDDED_AREA, Settings, SettingsError, threads_for


def load(**values: str) -> Settings:
    return Settings.load(environ={f"LINGBOT_{name.upper()}": text for name, text in values.items()})


def test_without_variables_there_are_the_defaults():
    assert Settings.load({}, {}) == Settings()
    assert Settings.load({}, {"LINGBOT_UNKNOWN": "1", "max_sessions": "3"}) == Settings()


def test_a_variable_wins_over_a_parameter():
    parameters = {"max_sessions": "3", "prefetch_depth": "1", "not_a_setting": "x"}
    settings = Settings.load(parameters, {"LINGBOT_MAX_SESSIONS": "5"})
    assert settings == Settings(max_sessions=5, prefetch_depth=1)


def test_text_becomes_the_type_of_the_setting():
    settings = load(compile="true", drain_seconds="3", kv_budget_bytes="1000", simulated="x")
    assert settings == Settings(
        compile=True, drain_seconds=3.0, kv_budget_bytes=1000, simulated="x"
    )


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("max_sessions", "99", "max_sessions is 99; it must be 1 to 64"),
        ("max_sessions", "many", "max_sessions is 'many'; it must be of type int"),
        ("max_sessions", "8.0", r"max_sessions is '8\.0'; it must be of type int"),
        ("max_sessions", "9" * 5000, "max_sessions is '9+'; it must be of type int"),
        ("simulated_scale", "x", "simulated_scale is 'x'; it must be of type float"),
        ("simulated_scale", "-1", r"simulated_scale is -1\.0; it must be at least 0"),
        ("compile", "yes", "compile is 'yes'; it must be true or false"),
        ("dtype", "int8", "dtype is 'int8'; it must be one of float32, bfloat16, float16"),
        ("prefetch_depth", "9", "prefetch_depth is 9; it must be 0 to 8"),
        ("control_window", "0", "control_window is 0; it must be at least 1"),
        ("triton_threads", "16", "triton_threads is 16; it must be at least 17"),
        ("stage_timeout_seconds", "0", r"is 0\.0; it must be above 0 and below 3600"),
        ("session_idle_seconds", "900", r"is 900\.0; it must be above 0 and below 900"),
        ("stage_timeout_seconds", "nan", "stage_timeout_seconds must be a finite number"),
        ("drain_seconds", "nan", "drain_seconds must be a finite number"),
        ("drain_seconds", "-1", r"drain_seconds is -1\.0; it must be at least 0"),
        ("kv_budget_bytes", "-1", "kv_budget_bytes is -1; it must be at least 0"),
        ("max_area", "1000000000", "max_area is 1000000000; it must be 0, or 256 to 921600"),
        ("max_area", "255", "max_area is 255; it must be 0, or 256 to 921600"),
        ("max_picture_bytes", "0", "max_picture_bytes is 0; it must be at least 1"),
    ],
)
def test_what_cannot_be_used_is_refused(name: str, text: str, sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence) as refused:
        load(**{name: text})
    assert "\n" not in str(refused.value)


def test_settings_made_in_code_are_checked_too() -> None:
    with pytest.raises(SettingsError, match="unknown setting 'sessions'; known settings: check"):
        Settings(sessions=1)  # type: ignore[call-arg]
    with pytest.raises(SettingsError, match="max_sessions must be of type int, not True"):
        Settings().replace(max_sessions=True)


def test_the_area_of_frames_follows_the_weights() -> None:
    assert load().session_defaults.max_area == EMBEDDED_AREA
    assert load(checkpoint="/weights").session_defaults.max_area == 480 * 832
    assert load(simulated="seed-4xh100").session_defaults.max_area == 480 * 832
    assert load(max_area="6144").session_defaults.max_area == 6144


def test_no_session_waits_for_a_thread() -> None:
    for sessions in (1, 8, 64):
        settings = Settings(max_sessions=sessions, triton_threads=threads_for(sessions))
        assert settings.calls_per_stage == sessions + 2
    assert Settings(max_sessions=64, triton_threads=17).calls_per_stage == 1
