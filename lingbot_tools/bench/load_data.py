"""Input data for perf_analyzer, and what it writes down of the responses."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lingbot_client.picture import DEFAULT_PROMPT, default_picture, encode_picture

from lingbot_tools.bench.drive import KEYS, FrameSize

SEQUENCES = ((7, 3), (7, 7), (7, 5), (4, 4))
"""Chunks that a session may have, and how many it is given before END: some end early."""

RESPONSES = ("READY", "FRAMES", "CLOSED")


def input_data(size: FrameSize) -> dict[str, Any]:
    """Streams of steps; perf_analyzer plays each as a sequence, picking them at random.

    END comes with a step of its own, without a control: a sequence that perf_analyzer breaks off
    jumps to its last step, and a control there would be out of order.
    """
    return {"data": [_stream(seed, *chunks, size) for seed, chunks in enumerate(SEQUENCES)]}


def _stream(seed: int, chunk_count: int, sent: int, size: FrameSize) -> list[dict[str, Any]]:
    picture = encode_picture(default_picture(size.width, size.height))
    # A BYTES element as Triton has it on the wire, which perf_analyzer wants as base64.
    element = len(picture).to_bytes(4, "little") + picture
    start = {
        "image": {"b64": base64.b64encode(element).decode()},
        "prompt": [DEFAULT_PROMPT],
        "options": [json.dumps({"seed": seed, "chunk_count": chunk_count, **size.options})],
    }
    controls = []
    for index in range(sent):
        keys = list(KEYS[(seed + index) % len(KEYS)]) or [""]
        controls.append({"chunk_index": [index], "keys": {"content": keys, "shape": [len(keys)]}})
    # A step needs an input, and an empty token is the one that sessions have without any.
    return [start, *controls, {"token": [""]}]


def read_export(path: Path) -> list[dict[str, Any]]:
    """The requests of perf_analyzer's profile export, whose strings are raw bytes, not UTF-8."""
    document = json.loads(path.read_text(encoding="latin-1"), strict=False)
    return [request for one in document["experiments"] for request in one["requests"]]


def count_responses(requests: Iterable[dict[str, Any]]) -> Counter[str]:
    """Responses by status."""
    responses = (response for request in requests for response in request["response_outputs"])
    return Counter(response.get("status", "no status") for response in responses)


def incomplete(requests: Iterable[dict[str, Any]]) -> int:
    """Controls whose responses were not every part of their chunk, in order."""
    controls = (request for request in requests if "chunk_index" in request["request_inputs"])
    return sum(not _whole(control["response_outputs"]) for control in controls)


def _whole(responses: list[dict[str, Any]]) -> bool:
    infos = [json.loads(one["info"]) for one in responses if one["status"] == "FRAMES"]
    return bool(infos) and [info["part"] for info in infos] == list(range(infos[0]["parts"]))


if __name__ == "__main__":
    print(json.dumps(input_data(FrameSize(96, 64))))
