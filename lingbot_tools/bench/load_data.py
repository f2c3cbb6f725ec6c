"""Input data for perf_analyzer, and what it writes down of the answers."""

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

ANSWERS = ("READY", "FRAMES", "CLOSED")


def input_data(size: FrameSize) -> dict[str, Any]:
    """Streams of steps; perf_analyzer plays each as a sequence, picking them at random.

    END comes with a step of its own, without a control: a sequence that perf_analyzer breaks off
    jumps to its last step, and a control there would be out of order.
    """
    return {"data": [_stream(seed, *chunks, size) for seed, chunks in enumerate(SEQUENCES)]}


def _stream(seed: int, most: int, sent: int, size: FrameSize) -> list[dict[str, Any]]:
    options = {"seed": seed, "chunk_count": most, **size.options}
    start = {
        "image": {"b64": _length_and(encode_picture(default_picture(size.width, size.height)))},
        "prompt": [DEFAULT_PROMPT],
        "options": [json.dumps(options)],
    }
    controls = [
        {"chunk_index": [index], "keys": _strings(KEYS[(seed + index) % len(KEYS)])}
        for index in range(sent)
    ]
    # A step needs an input, and an empty token is the one that sessions have without any.
    return [start, *controls, {"token": [""]}]


def _strings(keys: str) -> dict[str, Any]:
    content = list(keys) or [""]
    return {"content": content, "shape": [len(content)]}


def _length_and(data: bytes) -> str:
    """A BYTES element as Triton has it on the wire, which is what perf_analyzer wants as base64."""
    return base64.b64encode(len(data).to_bytes(4, "little") + data).decode()


def read_export(path: Path) -> list[dict[str, Any]]:
    """The requests of perf_analyzer's profile export, whose strings are raw bytes, not UTF-8."""
    document = json.loads(path.read_text(encoding="latin-1"), strict=False)
    return [request for one in document["experiments"] for request in one["requests"]]


def count_answers(requests: Iterable[dict[str, Any]]) -> Counter[str]:
    """Answers by status."""
    return Counter(
        answer.get("status", "no status")
        for request in requests
        for answer in request["response_outputs"]
    )


def incomplete(requests: Iterable[dict[str, Any]]) -> int:
    """Controls that were not answered with every part of their chunk, in order."""
    return sum(
        _parts(request["response_outputs"]) is False
        for request in requests
        if "chunk_index" in request["request_inputs"]
    )


def _parts(answers: list[dict[str, Any]]) -> bool:
    infos = [json.loads(answer["info"]) for answer in answers if answer["status"] == "FRAMES"]
    return bool(infos) and [info["part"] for info in infos] == list(range(infos[0]["parts"]))


if __name__ == "__main__":
    print(json.dumps(input_data(FrameSize(96, 64))))
