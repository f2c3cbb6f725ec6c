from __future__ import annotations

import base64
import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from lingbot_tools.bench import load
from lingbot_tools.bench.drive import FrameSize
from lingbot_tools.bench.load import Level, find_faults, perf_analyzer, write_csv
from lingbot_tools.bench.load_data import (
    SEQUENCES,
    count_responses,
    incomplete,
    input_data,
    read_export,
)
from lingbot_triton.options import SessionOptions
from lingbot_triton.world.geometry import Geometry

SIZE = FrameSize(96, 64)
GOOD = {
    "lingbot_sessions_opened_total": 3.0,
    'lingbot_sessions_closed_total{reason="end"}': 3.0,
    "lingbot_chunks_total": 9.0,
    "lingbot_first_frames_seconds_count": 9.0,
    "lingbot_first_frames_seconds_sum": 0.9,
}


def level() -> Level:
    return Level(4, {"Concurrency": "4"}, GOOD, {}, [])


def faults(**changes: Any) -> list[str]:
    return find_faults(4, GOOD | changes.pop("counters", {}), **changes)


def request(*answers: tuple[str, int, int], control: bool = True) -> dict[str, Any]:
    outputs = [
        {"status": status, "info": json.dumps({"part": part, "parts": parts})}
        for status, part, parts in answers
    ]
    inputs = {"chunk_index": 0} if control else {"token": ""}
    return {"request_inputs": inputs, "response_outputs": outputs}


def test_a_stream_starts_with_picture_and_prompt_and_ends_without_a_control() -> None:
    for steps in input_data(SIZE)["data"]:
        assert set(steps[0]) == {"image", "prompt", "options"}
        assert set(steps[-1]) == {"token"}
        assert [step["chunk_index"] for step in steps[1:-1]] == [[n] for n in range(len(steps) - 2)]


def test_some_sessions_end_early_and_some_use_all_their_chunks() -> None:
    spare = [most - sent for most, sent in SEQUENCES]
    assert min(spare) == 0
    assert max(spare) > 0
    for steps, (most, sent) in zip(input_data(SIZE)["data"], SEQUENCES, strict=True):
        assert len(steps) == 1 + sent + 1
        assert SessionOptions.parse(steps[0]["options"][0]).chunk_count == most


def test_sessions_have_the_size_that_was_asked_for() -> None:
    for size in (SIZE, FrameSize(832, 480), FrameSize(32, 16)):
        start = input_data(size)["data"][0][0]
        area = SessionOptions.parse(start["options"][0]).max_area
        assert Geometry.fit(size.height, size.width, area) == Geometry(size.height, size.width)


def test_the_picture_has_its_length_before_it() -> None:
    data = base64.b64decode(input_data(SIZE)["data"][0][0]["image"]["b64"])
    assert int.from_bytes(data[:4], "little") == len(data) - 4
    with Image.open(io.BytesIO(data[4:])) as picture:
        assert picture.size == (96, 64)


def test_keys_fit_their_shape() -> None:
    steps = [step for stream in input_data(SIZE)["data"] for step in stream if "keys" in step]
    assert {step["keys"]["shape"][0] for step in steps} == {1, 2}
    assert all(len(step["keys"]["content"]) == step["keys"]["shape"][0] for step in steps)


def test_the_call_names_the_models_behind_the_orchestrator(tmp_path: Path) -> None:
    call = perf_analyzer("127.0.0.1:9", tmp_path, 4, 100)
    assert call[call.index("--bls-composing-models") + 1] == "prompt,condition,denoise,decode"
    assert call[call.index("--concurrency-range") + 1] == "4"


def test_an_export_with_raw_bytes_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "export.json"
    path.write_bytes(
        b'{"experiments":[{"requests":[{"request_inputs":{"image":"\x89PNG\x01"},'
        b'"response_outputs":[{"status":"READY","info":"{}"}]}]}]}'
    )
    assert count_responses(read_export(path)) == {"READY": 1}


def test_a_chunk_needs_all_its_parts_in_order() -> None:
    whole = request(("FRAMES", 0, 2), ("FRAMES", 1, 2))
    assert incomplete([whole, request(("CLOSED", 0, 0), control=False)]) == 0
    assert incomplete([whole, request(("FRAMES", 0, 2))]) == 1
    assert incomplete([request(("FRAMES", 1, 2), ("FRAMES", 0, 2))]) == 1
    assert incomplete([request(("OUT_OF_ORDER", 0, 0)), request()]) == 2


def test_a_good_level_has_no_faults() -> None:
    assert faults() == []
    assert faults(responses=count_responses([request(("FRAMES", 0, 1))])) == []
    assert level().first_frames_ms == pytest.approx(100)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (
            {"counters": {'lingbot_rejections_total{code="WINDOW_FULL"}': 2.0}},
            '2 rejections: {code="WINDOW_FULL"} 2',
        ),
        (
            {"counters": {'lingbot_sessions_closed_total{reason="end"}': 2.0}},
            "1 sessions more were opened than ended by END",
        ),
        ({"open_sessions": 1.0}, "1 sessions are still there"),
        ({"counters": {"lingbot_chunks_total": 0.0}}, "no chunk was made"),
        (
            {"responses": count_responses([request(("STAGE_FAILED", 0, 0))])},
            "answers that are errors: {'STAGE_FAILED': 1}",
        ),
        ({"incomplete": 3}, "3 controls without all parts of their chunk"),
    ],
)
def test_whatever_is_wrong_is_a_fault(changes: dict[str, Any], fault: str) -> None:
    assert faults(**changes) == [f"concurrency 4: {fault}"]


def test_counters_are_taken_when_every_session_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, closed = "lingbot_sessions_opened_total", 'lingbot_sessions_closed_total{reason="end"}'
    shown = 'lingbot_sessions{state="open"}'
    pages = iter(
        [
            {opened: 2.0, closed: 1.0, shown: 1.0},
            {opened: 3.0, closed: 2.0, shown: 0.0},  # the third is not shown yet
            {opened: 3.0, closed: 3.0, shown: 1.0},
            {opened: 3.0, closed: 3.0, shown: 0.0},
        ]
    )
    monkeypatch.setattr(load, "scrape", lambda address: next(pages))
    assert load._settled("127.0.0.1:1") == {opened: 3.0, closed: 3.0, shown: 0.0}


def test_lines_of_all_levels_make_one_file(tmp_path: Path) -> None:
    write_csv(tmp_path / "all.csv", [level(), level()])
    with (tmp_path / "all.csv").open(newline="") as file:
        assert [row["Concurrency"] for row in csv.DictReader(file)] == ["4", "4"]
