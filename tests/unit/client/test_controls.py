from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from lingbot_client.controls import (
    key_controls,
    load_poses,
    parse_area,
    parse_keys,
    parse_option,
    pose_controls,
)


def test_keys_are_split_by_chunk_and_a_point_stands_still() -> None:
    assert parse_keys("w w wl . sa") == ["w", "w", "wl", "", "sa"]
    with pytest.raises(ValueError, match="no keys"):
        parse_keys("  ")


def test_keys_repeat_up_to_the_number_of_chunks() -> None:
    assert key_controls(["w", ""], 5) == [{"keys": k} for k in ["w", "", "w", "", "w"]]
    assert key_controls(["w", "a", "s"], 2) == [{"keys": "w"}, {"keys": "a"}]
    assert len(key_controls(["w", "a"], None)) == 2


@pytest.mark.parametrize("name", ["poses.npy", "poses.json"])
def test_poses_are_read_and_divided_among_chunks(tmp_path: Path, name: str) -> None:
    poses = np.arange(6 * 16, dtype=np.float32).reshape(6, 4, 4)
    path = tmp_path / name
    if name.endswith("npy"):
        np.save(path, poses)
    else:
        path.write_text(json.dumps(poses.tolist()))
    read = load_poses(path)
    assert read.dtype == np.float32
    assert np.array_equal(read, poses)
    assert [c["poses"].tolist() for c in pose_controls(read, None, 3)] == [
        poses[:3].tolist(),
        poses[3:].tolist(),
    ]
    assert len(pose_controls(read, 1, 3)) == 1
    assert [len(c["poses"]) for c in pose_controls(read, None, 2)] == [2, 2, 2]


def test_too_few_poses_are_an_error_with_both_numbers() -> None:
    with pytest.raises(ValueError, match="5 poses given; a multiple of 3"):
        pose_controls(np.zeros((5, 4, 4), np.float32), None, 3)
    with pytest.raises(ValueError, match="6 poses given; at least 3 times 3"):
        pose_controls(np.zeros((6, 4, 4), np.float32), 3, 3)


@pytest.mark.parametrize("text", ["[[1, 2], [3, 4]]", "[]", "{", '{"a": 1}', '"w"'])
def test_a_file_without_poses_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "poses.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"poses\.json holds"):
        load_poses(path)


def test_options_are_names_with_json_values() -> None:
    assert parse_option("shift=8.5") == ("shift", 8.5)
    assert parse_option("intrinsics=[1, 2, 3, 4]") == ("intrinsics", [1, 2, 3, 4])
    assert parse_option("kv_window_frames=null") == ("kv_window_frames", None)
    for wrong in ("shift", "=3", "shift=", "shift=high"):
        with pytest.raises(ValueError, match=r"name=value|not JSON"):
            parse_option(wrong)


def test_an_area_is_a_size_or_a_number_of_pixels() -> None:
    assert parse_area("832x480") == parse_area("399360") == 399360
    for wrong in ("", "1x2x3", "big", "-5", "832x"):
        with pytest.raises(ValueError, match="neither"):
            parse_area(wrong)
