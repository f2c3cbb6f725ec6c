"""What a real server says of itself: its metrics, and one line for every session that ends."""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from lingbot_client import WorldClient, WorldError

from lingbot_triton.errors import BY_CODE
from lingbot_triton.metrics import METRICS, SECONDS_BUCKETS, WORKER_STATES, Kind
from lingbot_triton.protocol import EndReason
from lingbot_triton.triton.scrape import scrape, total
from lingbot_triton.triton.server import ServerProcess
from lingbot_triton.world.geometry import Geometry
from tests.server.conftest import StartServer
from tests.server.play import encoded, eventually, page, picture, play, reported, sessions

SMALL: dict[str, Any] = {"max_area": 64 * 96}
START: dict[str, Any] = {
    "start": True,
    "image": encoded(picture()),
    "prompt": "a hill",
    "options": SMALL,
}
STAGES = {
    *("prompt", "open condition", "open denoise", "open decode"),
    *("condition", "denoise", "commit", "decode", "send"),
}
LABELS = {
    "lingbot_sessions": {"opening", "open", "closing"},
    "lingbot_sessions_closed_total": {reason.value for reason in EndReason},
    "lingbot_rejections_total": set(BY_CODE),
    "lingbot_stage_seconds": STAGES,
    "lingbot_worker_restarts_total": {"prompt", "condition", "denoise", "decode"},
    "lingbot_stage_away": {"prompt", "condition", "denoise", "decode"},
    "lingbot_worker_states": {"condition_0_0", "denoise_0_0", "decode_0_0"},
}
"""Every label's values: they are few, and no client can add to them."""
GAUGES = {spec.name for spec in (*METRICS, WORKER_STATES) if spec.kind is Kind.GAUGE}
CLOSED = "lingbot_sessions_closed_total"


@pytest.fixture(scope="module")
def server(shared_server: StartServer) -> ServerProcess:
    return shared_server(max_sessions=4, simulated="seed-4xh100", simulated_scale=0.05)


@asynccontextmanager
async def counted(
    server: ServerProcess, client: WorldClient, ended: int
) -> AsyncIterator[dict[str, float]]:
    """After the block, in which `ended` sessions end, by how much each series has grown in it.

    What did not grow is left out. A session's end is counted after all else that it counts.
    """
    await reported(server, client)
    await eventually(lambda: _held(server) == 0)
    before = scrape(server.metrics)
    growth: dict[str, float] = defaultdict(float)
    yield growth
    closed = total(before, CLOSED) + ended
    await eventually(lambda: total(scrape(server.metrics), CLOSED) == closed)
    await eventually(lambda: _held(server) == 0)
    after = scrape(server.metrics)
    growth.update({k: v - before.get(k, 0) for k, v in after.items() if v != before.get(k, 0)})


def _held(server: ServerProcess) -> float:
    """All gauges together."""
    series = scrape(server.metrics)
    return sum(value for name, value in series.items() if name.partition("{")[0] in GAUGES)


def test_every_family_is_exported_with_its_kind_and_meaning(server: ServerProcess) -> None:
    text = page(server)
    for spec in (*METRICS, WORKER_STATES):
        assert (
            f"# HELP {spec.name} {spec.description}\n# TYPE {spec.name} {spec.kind.value}\n" in text
        )


def test_a_played_session_is_counted_right(server: ServerProcess) -> None:
    async def scenario() -> dict[str, float]:
        async with WorldClient(server.grpc) as client, counted(server, client, 1) as growth:
            await play(client, ["w", "l", ""], chunk_count=3, **SMALL)
        return growth

    growth = asyncio.run(scenario())
    expected: dict[str, float] = {
        "lingbot_sessions_opened_total": 1,
        'lingbot_sessions_closed_total{reason="end"}': 1,
        "lingbot_chunks_total": 3,
        "lingbot_frames_total": 9 + 12 + 12,
        "lingbot_first_frames_seconds_count": 3,
        "lingbot_chunk_seconds_count": 3,
        "lingbot_condition_wait_seconds_count": 3,
    }
    calls = dict.fromkeys(STAGES, 1) | {"condition": 3, "denoise": 3, "commit": 3}
    calls |= {"decode": 9, "send": 9}
    for stage, count in calls.items():
        expected[f'lingbot_stage_seconds_count{{stage="{stage}"}}'] = count
    ignored = re.compile(r"_(bucket|sum)(\{|$)")
    assert {name: n for name, n in growth.items() if not ignored.search(name)} == expected


def test_histograms_measure_seconds(server: ServerProcess) -> None:
    """4 denoising steps, and a third of the decoding, are the least that first frames take."""

    async def scenario() -> dict[str, float]:
        async with WorldClient(server.grpc) as client, counted(server, client, 1) as growth:
            await play(client, ["w", "l"], chunk_count=2, **SMALL)
        return growth

    growth = asyncio.run(scenario())
    least = 0.05 * (4 * 0.252 + 0.0642)
    first, whole = (growth[f"lingbot_{name}_seconds_sum"] for name in ("first_frames", "chunk"))
    assert 2 * least < first < whole < 120
    assert growth['lingbot_stage_seconds_sum{stage="denoise"}'] > 2 * 0.05 * 4 * 0.252
    buckets = {
        name: count for name, count in growth.items() if "first_frames_seconds_bucket" in name
    }
    counts = [buckets.get(f"lingbot_first_frames_seconds_bucket{{le=\"{bound:g}\"}}", 0.0)
              for bound in SECONDS_BUCKETS]  # fmt: skip
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, 2)
    assert buckets['lingbot_first_frames_seconds_bucket{le="+Inf"}'] == 2


def test_gauges_show_what_is_held_and_nothing_after(server: ServerProcess) -> None:
    height, width = Geometry.fit(64, 96, SMALL["max_area"]).latent
    held = {
        'lingbot_sessions{state="open"}': 2,
        "lingbot_conditions_alive": 4,
        "lingbot_condition_bytes": 4 * 20 * 3 * height * width * 4,
        "lingbot_calls_in_flight": 0,
        **{f'lingbot_worker_states{{instance="{stage}_0_0"}}': 2
           for stage in ("condition", "denoise", "decode")},
    }  # fmt: skip

    def shown() -> dict[str, float]:
        series = scrape(server.metrics)
        return {name: series[name] for name in held}

    async def scenario() -> None:
        async with WorldClient(server.grpc) as client:
            for name in ("first", "second"):
                await client.request(name, **START)
            await eventually(lambda: shown() == held)
            for name in ("first", "second"):
                await client.request(name, end=True)
            await eventually(lambda: shown() == dict.fromkeys(held, 0))

    asyncio.run(scenario())


def test_rejections_are_counted_by_code(server: ServerProcess) -> None:
    async def scenario() -> dict[str, float]:
        async with WorldClient(server.grpc) as client, counted(server, client, 4) as growth:
            await client.request("r", **START | {"options": {"chunk_count": 1, **SMALL}})
            await client.request("r", chunk_index=1)
            await client.request("r", chunk_index=0)
            await client.request("r", chunk_index=0)
            await client.request("r", chunk_index=1)
            await client.request("r", chunk_index=1, keys=["x"])
            await client.request("r", chunk_index=1, token="another")
            others = [client.request(f"other {number}", **START) for number in range(4)]
            await asyncio.gather(*others)
            for number in range(4):
                with_end = client.request(f"other {number}", end=True)
                (await with_end) if number else await asyncio.wait_for(with_end, 60)
            await client.request("r", end=True)
        return growth

    growth = asyncio.run(scenario())
    codes = {
        name.split('"')[1]: count for name, count in growth.items() if "rejections_total" in name
    }
    assert codes.pop("NO_SESSION") == 2  # the other token, and the END of who was not let in
    assert codes == {
        "OUT_OF_ORDER": 1,
        "DUPLICATE": 1,
        "LENGTH_LIMIT": 1,
        "BAD_REQUEST": 1,
        "SESSION_LIMIT": 1,
    }


def test_no_client_can_add_a_label(server: ServerProcess) -> None:
    """Ids, tokens, prompts, options and codes of clients never become labels."""
    rest = np.array([b"\xff\xfe"], object)
    strange: list[dict[str, Any]] = [
        {"prompt": 'a"} 1\n', "token": 'x="y"'},
        {"options": {'}"': 1}},
        {"options": {"seed": 7, **SMALL}, "chunk_index": 0, "keys": ["w"]},
        {"image": b"{}"},
        {"prompt": rest},
        {"chunk_index": 77, "keys": ["}"]},
    ]

    async def scenario() -> None:
        async with WorldClient(server.grpc) as client:
            for number, inputs in enumerate(strange):
                for name in (f'id{number}"}} 5', number + 1000):
                    request = {**START, **inputs}
                    try:
                        await client.request(name, end=True, **request)
                    except WorldError as error:
                        pytest.fail(str(error))
        await eventually(lambda: sessions(server) == 0)

    asyncio.run(scenario())
    values = defaultdict(set)
    for name in scrape(server.metrics):
        for label, value in re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', name):
            if label != "le":
                family = re.sub(r"_(bucket|count|sum)$", "", name.partition("{")[0])
                values[family].add(value)
    assert values.keys() <= LABELS.keys()
    for family, found in values.items():
        assert found <= LABELS[family], family


def test_every_session_that_ends_writes_one_line(server: ServerProcess) -> None:
    def endings() -> list[dict[str, Any]]:
        log = server.config.log
        assert log is not None
        lines = re.findall(r"session ended (\{.*\})\"$", log.read_text(), re.MULTILINE)
        return [json.loads(line.replace('\\"', '"')) for line in lines]

    async def scenario() -> list[dict[str, Any]]:
        async with WorldClient(server.grpc) as client:
            await reported(server, client)
            closed = total(scrape(server.metrics), CLOSED)
            await eventually(lambda: len(endings()) == closed)
            before = len(endings())
            await play(client, ["w", "l"], chunk_count=2, **SMALL)
            await client.request("line", **START)
            await client.request("line", chunk_index=0, **START)
            await client.request("line", end=True)
            await client.request("broken", end=True, **START | {"image": b"no picture"})
            await reported(server, client)
        assert total(scrape(server.metrics), CLOSED) == closed + 4
        await eventually(lambda: len(endings()) == before + 4)
        return endings()[before:]

    lines = asyncio.run(scenario())
    assert [line["reason"] for line in lines] == ["end", "replaced", "end", "failed"]
    assert [line["chunks"] for line in lines] == [2, 0, 1, 0]
    assert [line["frames"] for line in lines] == [21, 0, 9, 0]
    assert [bool(line["error"]) for line in lines] == [False, False, False, True]
    assert len({line["correlation_id"] for line in lines}) == 4
    assert lines[0].keys() == {
        *("correlation_id", "reason", "error", "chunks", "frames"),
        *("condition_calls", "steady_chunks", "seconds"),
    }
    assert lines[0]["condition_calls"] == 2
