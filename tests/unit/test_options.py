"""What a client sends as options becomes a session's options, or one sentence."""

from __future__ import annotations

import json

import pytest

from lingbot_triton.errors import BadRequest
from lingbot_triton.options import SessionOptions

CHUNK = 3


def test_an_empty_object_is_the_defaults():
    assert SessionOptions.parse("{}") == SessionOptions()
    assert SessionOptions().differing() == {}


def test_json_and_back():
    options = SessionOptions(
        seed=7, shift=5, intrinsics=(500, 400, 416, 240), intrinsics_size=(832, 480)
    )
    assert SessionOptions.parse(options.to_json()) == options
    assert hash(SessionOptions.parse(options.to_json())) == hash(options)
    assert options.differing() == {
        "seed": 7,
        "shift": 5.0,
        "intrinsics": [500.0, 400.0, 416.0, 240.0],
        "intrinsics_size": [832, 480],
    }
    assert list(json.loads(options.to_json())) == list(SessionOptions.model_fields)


def test_a_float_takes_a_whole_number():
    assert repr(SessionOptions.parse('{"shift": 5}').shift) == "5.0"


def test_options_lie_over_the_defaults():
    defaults = SessionOptions(shift=5.0, max_area=9216)
    options = SessionOptions.parse('{"seed": 1}', defaults)
    assert options == defaults.replace(seed=1)
    assert (options.shift, options.max_area) == (5.0, 9216)


def test_options_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        SessionOptions().seed = 1  # type: ignore[misc]


REFUSED = {
    "no JSON": (b"{seed", "options are not valid JSON: Expecting property name"),
    "not UTF-8": (b"\xff\xfe\x01", "options are not valid JSON: "),
    "deep": (b"[" * 100_000, "options are not valid JSON: maximum recursion depth exceeded"),
    "endless number": (b'{"seed": 1' + b"0" * 5000 + b"}", "options are not valid JSON: Exceeds"),
    "no object": (b"[1]", "options must be a JSON object, not list"),
    "null": (b"null", "options must be a JSON object, not NoneType"),
    "unknown": (b'{"sed": 1}', "unknown option 'sed'; known options: seed, chunk_count, shift"),
    "several unknown": (b'{"zzz": 1, "self": 1}', "unknown option 'self'; known options: seed"),
    "unknown, not a text": (b'{"\\ud800": 1}', r"unknown option '\ud800'; known options: seed"),
    "text": (b'{"seed": "1"}', "option 'seed' must be of type int, not '1'"),
    "null for a number": (b'{"seed": null}', "option 'seed' must be of type int, not None"),
    "true for int": (b'{"seed": true}', "option 'seed' must be of type int, not True"),
    "1 for bool": (b'{"trace": 1}', "option 'trace' must be of type bool, not 1"),
    "float for int": (b'{"chunk_count": 2.0}', "option 'chunk_count' must be of type int, not 2.0"),
    "true for float": (b'{"shift": true}', "option 'shift' must be of type float, not True"),
    "infinite": (b'{"shift": Infinity}', "option 'shift' must be a finite number"),
    "not a number": (b'{"shift": NaN}', "option 'shift' must be a finite number"),
    "too large for a float": (
        b'{"shift": 1' + b"0" * 400 + b"}",
        "option 'shift' must be a finite number",
    ),
    "too small": (
        b'{"chunk_count": 0}',
        "option 'chunk_count' is 0; it must lie between 1 and 10000",
    ),
    "too large": (
        b'{"max_area": 1000000000}',
        "option 'max_area' is 1000000000; it must lie between 256 and 921600",
    ),
    "far too large": (
        b'{"seed": 1' + b"0" * 400 + b"}",
        "option 'seed' is 1" + "0" * 56 + "...; it must lie between 0 and 9223372036854775807",
    ),
    "the last of a name twice": (
        b'{"seed": 1, "seed": -1}',
        "option 'seed' is -1; it must lie between 0",
    ),
    "optional": (
        b'{"prefetch_depth": 9}',
        "option 'prefetch_depth' is 9; it must lie between 0 and 8",
    ),
    "short list": (b'{"intrinsics": [1, 2]}', "option 'intrinsics' must be a list of 4 numbers"),
    "long list": (
        b'{"intrinsics": [1, 2, 3, 4, 5]}',
        "option 'intrinsics' must be a list of 4 numbers",
    ),
    "no list": (b'{"intrinsics": "1234"}', "option 'intrinsics' must be a list of 4 numbers"),
    "list of texts": (
        b'{"intrinsics": [1, 2, 3, "4"]}',
        "option 'intrinsics' must be of type float, not '4'",
    ),
    "infinite in a list": (
        b'{"intrinsics": [1, 2, 3, 1e400]}',
        "option 'intrinsics' must be a finite number",
    ),
    "out of range in a list": (
        b'{"intrinsics": [1, 0, 3, 4]}',
        "option 'intrinsics fy' is 0; it must lie between 0.001 and 1000000.0",
    ),
    "size alone": (
        b'{"intrinsics_size": [832, 480]}',
        "option 'intrinsics_size' needs option 'intrinsics'",
    ),
    "sinks alone": (
        b'{"kv_sink_frames": 2}',
        "option 'kv_sink_frames' needs option 'kv_window_frames'",
    ),
    "long text": (
        b'{"seed": "' + b"x" * 10_000 + b'"}',
        "option 'seed' must be of type int, not 'xxxxx",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_used_is_refused_in_one_sentence(case: str) -> None:
    text, sentence = REFUSED[case]
    with pytest.raises(BadRequest) as refused:
        SessionOptions.parse(text)
    assert str(refused.value).startswith(sentence)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 700


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"decode_frames": 4}', "option 'decode_frames' is 4; it must lie between 1 and 3"),
        ('{"decode_frames": 0}', "option 'decode_frames' is 0; it must lie between 1 and 3"),
        ('{"kv_window_frames": 2}', "'kv_window_frames' is 2; it must lie between 3 and 1000"),
        (
            '{"kv_window_frames": 4, "kv_sink_frames": 2}',
            "'kv_window_frames' is 4; it must lie between 5 and 1000",
        ),
    ],
)
def test_some_limits_depend_on_the_length_of_a_chunk(text: str, sentence: str) -> None:
    options = SessionOptions.parse(text)
    with pytest.raises(BadRequest, match=sentence):
        options.check_chunk(CHUNK)
    SessionOptions(decode_frames=3, kv_window_frames=5, kv_sink_frames=2).check_chunk(CHUNK)


def test_options_made_in_code_are_checked_too() -> None:
    with pytest.raises(BadRequest, match="unknown option 'sed'"):
        SessionOptions(sed=1)  # type: ignore[call-arg]
    with pytest.raises(BadRequest, match="option 'seed' is -1"):
        SessionOptions().replace(seed=-1)


def test_a_window_makes_a_session_endless() -> None:
    full, endless = SessionOptions(chunk_count=5), SessionOptions(kv_window_frames=9)
    assert (full.endless, full.last_chunk, full.cache_latent_frames(CHUNK)) == (False, 4, 15)
    assert (endless.endless, endless.last_chunk, endless.cache_latent_frames(CHUNK)) == (
        True,
        None,
        9,
    )
