"""Sessions on a service: who ends them, what fails, and that all is released."""

from __future__ import annotations

import asyncio
import random

import pytest

from lingbot_triton.orchestrator.events import Control
from lingbot_triton.orchestrator.requests import Request
from tests.unit.orchestrator.fakes import FakeSink, FakeStages
from tests.unit.orchestrator.harness import ServiceHarness
from tests.unit.orchestrator.virtual_time import run, stand_still


def test_start_on_a_live_id_ends_the_old_session_first() -> None:
    async def scenario() -> None:
        harness = ServiceHarness(max_sessions=1)
        await harness.send(start=True, chunk=0).done()
        old = harness.send(chunk=1)
        sink = harness.send(start=True, chunk=0)
        assert await old.done() == ["SESSION_FAILED"]
        assert await sink.done() == ["READY"] + ["FRAMES"] * 3
        assert sink.responses[1].frame_index == 0
        first, second = harness.stages.sessions.values()
        assert first.closed == ["decode", "denoise", "condition"]
        assert second.denoised == 1
        await harness.idle()

    run(scenario())


def test_a_foreign_token_sees_no_session_and_does_no_harm() -> None:
    async def scenario() -> None:
        harness = ServiceHarness()
        await harness.send(start=True, token=b"mine").done()
        assert await harness.send(chunk=0, token=b"other").done() == ["NO_SESSION"]
        assert await harness.send(end=True).done() == ["NO_SESSION"]
        assert await harness.send(start=True, token=b"other").done() == ["NO_SESSION"]
        assert await harness.send(chunk=0, token=b"mine").done() == ["FRAMES"] * 3
        await harness.idle()

    run(scenario())


def test_a_start_that_opens_nothing_goes_on_with_the_live_session() -> None:
    async def scenario() -> None:
        harness = ServiceHarness()
        await harness.send(start=True, chunk=0, token=b"mine").done()
        sink = FakeSink()
        control = Control(1, harness.clock(), "w")
        harness.service.accept(Request(1, b"mine", event=control, starts=True), sink)
        assert await sink.done() == ["FRAMES"] * 3
        sink = FakeSink()
        harness.service.accept(Request(2, b"mine", event=control, starts=True), sink)
        assert await sink.done() == ["NO_SESSION"]
        sink = FakeSink()
        harness.service.accept(Request(2, b"mine", starts=True), sink)
        assert await sink.done() == ["BAD_REQUEST"]
        await harness.idle()

    run(scenario())


def test_an_opening_that_is_refused_leaves_nothing() -> None:
    async def scenario() -> None:
        harness = ServiceHarness()
        sink = harness.send(start=True, image=b"broken", chunk=0)
        assert await sink.done() == ["BAD_REQUEST"]
        assert sink.responses[0].message == "the image cannot be read"
        await asyncio.sleep(10)
        assert await harness.send(start=True, chunk=0).done() == ["READY"] + ["FRAMES"] * 3
        await harness.idle()

    run(scenario())


STAGE_CALLS = [("condition", 3), ("denoise", 1), ("commit", 1), ("decode", 1)]


@pytest.mark.parametrize("call", STAGE_CALLS)
def test_a_failing_stage_ends_its_session_only(call: tuple[str, int]) -> None:
    async def scenario() -> None:
        harness = ServiceHarness()
        harness.stages.costs = {"condition": 0.1, "denoise": 1, "commit": 0.5, "decode": 0.5}
        await harness.send(1, start=True, chunk=0).done()
        await asyncio.sleep(10)
        harness.stages.fail_on = call
        sinks = [harness.send(1, chunk=1), harness.send(1, chunk=2)]
        assert {(await sink.done())[-1] for sink in sinks} == {"STAGE_FAILED"}
        assert await harness.send(1, chunk=3).done() == ["SESSION_FAILED"]
        harness.stages.fail_on = None
        assert await harness.send(2, start=True, chunk=0).done() == ["READY"] + ["FRAMES"] * 3
        assert await harness.send(1, end=True).done() == ["SESSION_FAILED"]
        assert await harness.send(1, start=True, chunk=0).done() == ["READY"] + ["FRAMES"] * 3
        await harness.idle()

    run(scenario())


def test_a_commit_that_fails_after_the_last_frames_fails_the_session_and_not_the_chunk() -> None:
    async def scenario() -> None:
        harness = ServiceHarness()
        harness.stages.costs = {"condition": 0.1, "denoise": 1, "commit": 9, "decode": 0.2}
        harness.stages.fail_on = ("commit", 0)
        assert await harness.send(1, start=True, chunk=0).done() == ["READY"] + ["FRAMES"] * 3
        waiting = harness.send(1, chunk=1)
        assert await waiting.done() == ["STAGE_FAILED"]
        assert await harness.send(1, chunk=2).done() == ["SESSION_FAILED"]
        await harness.idle()

    run(scenario())


@pytest.mark.parametrize("stage", ["prompt", "condition", "denoise", "decode"])
def test_a_failing_opening_releases_what_was_opened(stage: str) -> None:
    async def scenario() -> None:
        stages = FakeStages()
        stages.fail_on = (stage, 0)
        harness = ServiceHarness(stages)
        assert await harness.send(start=True).done() == ["STAGE_FAILED"]
        await harness.idle()

    run(scenario())


def test_a_silent_session_ends_and_its_id_is_unknown() -> None:
    async def scenario() -> None:
        harness = ServiceHarness(session_idle_seconds=50)
        await harness.send(start=True, chunk=0).done()
        await asyncio.sleep(45)
        assert len(harness.service.table) == 1
        await asyncio.sleep(10)
        assert len(harness.service.table) == 0
        assert await harness.send(chunk=1).done() == ["NO_SESSION"]
        await harness.idle()

    run(scenario())


def test_nobody_was_silent_while_the_server_itself_stood_still() -> None:
    """What was sent meanwhile comes only after the sweep that is due."""

    async def scenario() -> None:
        harness = ServiceHarness(session_idle_seconds=50)
        await harness.send(start=True, chunk=0).done()
        stand_still(100)
        await asyncio.sleep(0.1)
        assert await harness.send(chunk=1).done() == ["FRAMES"] * 3
        await asyncio.sleep(45)
        assert len(harness.service.table) == 1
        await asyncio.sleep(10)
        assert len(harness.service.table) == 0
        await harness.idle()

    run(scenario())


def test_a_client_that_is_gone_ends_its_session() -> None:
    async def scenario() -> None:
        harness = ServiceHarness()
        await harness.send(start=True).done()
        sink = harness.send(chunk=0)
        sink.gone = True
        await asyncio.sleep(10)
        assert len(harness.service.table) == 0
        await harness.idle()

    run(scenario())


def test_end_finishes_what_was_admitted_and_waits_for_the_commit() -> None:
    async def scenario() -> None:
        harness = ServiceHarness()
        first = harness.send(start=True, chunk=0)
        second = harness.send(chunk=1)
        closing = harness.send(end=True)
        assert await closing.done() == ["CLOSED"]
        assert (first.final.is_set(), second.final.is_set()) == (True, True)
        assert closing.responses[0].info["chunks"] == 2
        (seen,) = harness.stages.sessions.values()
        assert (seen.committed, seen.conditions) == (2, 2)
        await harness.idle()

    run(scenario())


def test_end_while_conditions_are_encoded_needs_no_more_of_them() -> None:
    async def scenario() -> None:
        stages = FakeStages()
        stages.costs = {"condition": 5}
        harness = ServiceHarness(stages)
        await harness.send(start=True).done()
        assert await harness.send(end=True).done() == ["CLOSED"]
        (seen,) = harness.stages.sessions.values()
        assert seen.conditions <= 2
        await harness.idle()

    run(scenario())


def test_end_of_a_refused_control_closes_all_the_same() -> None:
    async def scenario() -> None:
        harness = ServiceHarness()
        await harness.send(start=True).done()
        assert await harness.send(chunk=7, end=True).done() == ["OUT_OF_ORDER", "CLOSED"]
        await harness.idle()

    run(scenario())


def test_shutting_down_answers_everybody() -> None:
    async def scenario() -> None:
        stages = FakeStages()
        stages.costs = {"denoise": 100}
        harness = ServiceHarness(stages)
        await harness.send(start=True).done()
        sink = harness.send(chunk=0)
        await harness.service.shut_down(5)
        assert sink.statuses == ["SHUTTING_DOWN"]
        late = harness.send(start=True)
        assert await late.done() == ["SHUTTING_DOWN"]
        harness.stages.check_released()

    run(scenario())


async def _client(harness: ServiceHarness, dice: random.Random, session_id: int) -> None:
    """A client that does right and wrong things at random, and checks every response."""
    next_chunk, sinks = 0, []
    sink = harness.send(session_id, start=True, chunk_count=12, seconds=dice.random() * 0.2)
    sinks.append((sink, None))
    for _ in range(dice.randrange(1, 14)):
        await asyncio.sleep(dice.choice([0, 0, dice.random() * 4]))
        wrong = dice.random() < 0.15
        chunk = next_chunk + dice.choice([-1, 1, 2]) if wrong else next_chunk
        if chunk < 0:
            continue
        session = harness.service.table.find(session_id)
        assert session is not None
        sink = harness.send(session_id, chunk=chunk, seconds=dice.random() * 0.2)
        if session.controls.next_index > next_chunk:
            assert chunk == next_chunk
            sinks.append((sink, chunk))
            next_chunk += 1
        else:
            (refusal,) = await sink.done()
            codes = {-1: "DUPLICATE", 0: "WINDOW_FULL"}
            limit = "LENGTH_LIMIT" if next_chunk == 12 and chunk == 12 else "OUT_OF_ORDER"
            assert refusal == codes.get(chunk - next_chunk, limit) or refusal == limit
    way = dice.choice(["end", "end", "vanish", "restart"])
    if way == "vanish":
        for sink, _ in sinks:
            sink.gone = True
        return
    if way == "restart":
        harness.send(session_id, start=True, end=True)
        return
    await harness.send(session_id, end=True).done()
    frames = 0
    for sink, chunk in sinks:
        assert sink.final.is_set()
        if chunk is None:
            assert sink.statuses == ["READY"]
            continue
        assert len(sink.responses) == 3
        for response in sink.responses:
            assert (response.status, response.chunk_index) == ("FRAMES", chunk), sink.responses
            assert response.frame_index == frames
            frames += len(response.frames)
            assert all(frame[1] == chunk for frame in response.frames)


def _interleaving(seed: int) -> None:
    async def scenario() -> None:
        dice = random.Random(seed)
        depth = dice.choice([0, 1, 2, 2])
        harness = ServiceHarness(FakeStages(seed, depth), max_sessions=4, prefetch_depth=depth)
        await asyncio.gather(*(_client(harness, dice, session_id) for session_id in range(4)))
        await harness.idle()

    run(scenario())


@pytest.mark.parametrize("block", range(10))
def test_thousands_of_interleavings_keep_order_bounds_and_leave_nothing(block: int) -> None:
    for seed in range(block * 200, block * 200 + 200):
        _interleaving(seed)
