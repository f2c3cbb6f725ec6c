"""Requests against fake stages in virtual time: what is admitted, answered, ended and released."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import pytest

from lingbot_triton.cursors import Control
from lingbot_triton.errors import BadRequest
from lingbot_triton.options import SessionOptions
from lingbot_triton.pipeline import Pipeline
from lingbot_triton.recovery import Workers
from lingbot_triton.requests import Request, Start
from lingbot_triton.service import Service
from lingbot_triton.settings import Settings
from tests.unit.fakes import FakeReply, FakeStages
from tests.unit.virtual_time import run


async def _picture(image: bytes) -> Any:
    await asyncio.sleep(0)
    if image == b"broken":
        raise BadRequest("the image cannot be read")
    return np.zeros((64, 96, 3), np.uint8)


class House:
    """A service over fake stages, with short names for what a client does."""

    def __init__(
        self, stages: FakeStages | None = None, workers: Workers | None = None, **settings: Any
    ) -> None:
        self.stages = stages or FakeStages()
        clock = asyncio.get_running_loop().time
        self.clock = clock
        known = Settings(**settings)
        pipeline = Pipeline(self.stages, clock, timeout=known.stage_timeout_seconds)
        self.service = Service(known, pipeline, _picture, clock, workers=workers)

    def send(
        self,
        session_id: int | str = 1,
        chunk: int | None = None,
        *,
        start: bool = False,
        end: bool = False,
        token: bytes = b"",
        image: bytes = b"picture",
        seconds: float = 0.0,
        **options: Any,
    ) -> FakeReply:
        reply = FakeReply(seconds)
        beginning = Start(image, "a castle", SessionOptions(**options)) if start else None
        control = None if chunk is None else Control(chunk, self.clock(), "w")
        request = Request(session_id, token, beginning, end, control, starts=start)
        self.service.accept(request, reply)
        return reply

    async def idle(self) -> None:
        """Let everything that is under way end, then stop the service and look for leaks."""
        await self.service.shut_down(1e6)
        assert len(self.service.table) == 0
        self.stages.check_released()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.sleep(0)
        assert not [task for task in left if not task.done()]


def test_a_session_from_start_to_end() -> None:
    async def scenario() -> None:
        house = House()
        assert await house.send(start=True).done() == ["READY"]
        reply = house.send(chunk=0)
        assert await reply.done() == ["FRAMES"] * 3
        assert [answer.frame_index for answer in reply.answers] == [0, 1, 5]
        assert [len(answer.frames) for answer in reply.answers] == [1, 4, 4]
        assert [answer.info["part"] for answer in reply.answers] == [0, 1, 2]
        reply = house.send(chunk=1, end=True)
        assert await reply.done() == ["FRAMES"] * 3 + ["CLOSED"]
        assert [answer.frame_index for answer in reply.answers[:3]] == [9, 13, 17]
        summary = reply.answers[-1].info
        assert (summary["reason"], summary["chunks"], summary["frames"]) == ("end", 2, 21)
        await house.idle()

    run(scenario())


def test_start_may_carry_control_and_end() -> None:
    async def scenario() -> None:
        house = House()
        reply = house.send(start=True, chunk=0, end=True)
        assert await reply.done() == ["READY"] + ["FRAMES"] * 3 + ["CLOSED"]
        assert await house.send(chunk=1).done() == ["NO_SESSION"]
        await house.idle()

    run(scenario())


def test_prefetch_starts_with_the_opening_and_stops_at_the_depth() -> None:
    async def scenario() -> None:
        house = House()
        await house.send(start=True).done()
        await asyncio.sleep(100)
        (seen,) = house.stages.sessions.values()
        assert (seen.conditions, seen.denoised) == (2, 0)
        await house.send(chunk=0).done()
        await asyncio.sleep(100)
        assert seen.conditions == 3
        await house.idle()

    run(scenario())


def test_a_control_whose_condition_is_there_does_not_wait() -> None:
    async def scenario() -> None:
        stages = FakeStages()
        stages.costs = {"condition": 5, "denoise": 4, "commit": 1, "decode": 0.25}
        house = House(stages)
        await house.send(start=True).done()
        for chunk in range(4):
            await asyncio.sleep(20)
            reply = house.send(chunk=chunk)
            await reply.done()
            times = reply.answers[0].info["ms"]
            assert times["condition_wait"] == 0
            assert times["since_acceptance"] == 4250, "frames wait for the denoise and one decode"
        await house.idle()

    run(scenario())


def test_the_next_condition_and_the_commit_run_beside_the_frames() -> None:
    async def scenario() -> None:
        stages = FakeStages()
        stages.costs = {"condition": 3, "denoise": 4, "commit": 3, "decode": 1}
        house = House(stages)
        await house.send(start=True, trace=True, chunk=0).done()
        reply = house.send(chunk=1, end=True)
        await reply.done()
        spans = {(name, chunk): (a, b) for name, chunk, a, b in reply.answers[-1].info["spans"]}
        denoised = spans["denoise", 0][1]
        assert spans["commit", 0][0] == denoised
        assert spans["condition", 2][0] == denoised
        assert spans["decode", 0][1] == denoised + 3
        await house.idle()

    run(scenario())


@pytest.mark.parametrize(("chunk", "code"), [(0, "DUPLICATE"), (3, "OUT_OF_ORDER")])
def test_a_wrong_index_leaves_the_session_as_it_was(chunk: int, code: str) -> None:
    async def scenario() -> None:
        house = House()
        await house.send(start=True, chunk=0).done()
        assert await house.send(chunk=chunk).done() == [code]
        assert await house.send(chunk=1).done() == ["FRAMES"] * 3
        await house.idle()

    run(scenario())


def test_a_third_control_ahead_is_refused_and_may_come_again() -> None:
    async def scenario() -> None:
        house = House()
        opening = house.send(start=True, chunk=0)
        ahead = house.send(chunk=1)
        assert await house.send(chunk=2).done() == ["WINDOW_FULL"]
        await opening.done()
        assert await ahead.done() == ["FRAMES"] * 3
        assert await house.send(chunk=2).done() == ["FRAMES"] * 3
        await house.idle()

    run(scenario())


def test_the_length_limit_holds_and_conditions_end_with_it() -> None:
    async def scenario() -> None:
        house = House()
        await house.send(start=True, chunk=0, chunk_count=2).done()
        await house.send(chunk=1).done()
        assert await house.send(chunk=2).done() == ["LENGTH_LIMIT"]
        (seen,) = house.stages.sessions.values()
        assert seen.conditions == 2
        await house.idle()

    run(scenario())


def test_a_steady_condition_is_asked_for_once() -> None:
    async def scenario() -> None:
        house = House(FakeStages(steady_from=3))
        await house.send(start=True, chunk_count=12).done()
        for chunk in range(12):
            assert await house.send(chunk=chunk).done() == ["FRAMES"] * 3
        (seen,) = house.stages.sessions.values()
        assert seen.conditions == 4
        await house.idle()

    run(scenario())


def test_the_session_limit_counts_until_all_is_released() -> None:
    async def scenario() -> None:
        house = House(max_sessions=2)
        await house.send(1, start=True).done()
        await house.send(2, start=True).done()
        assert await house.send(3, start=True).done() == ["SESSION_LIMIT"]
        assert await house.send(1, end=True).done() == ["CLOSED"]
        assert await house.send(3, start=True).done() == ["READY"]
        await house.idle()

    run(scenario())


def test_start_on_a_live_id_ends_the_old_session_first() -> None:
    async def scenario() -> None:
        house = House(max_sessions=1)
        await house.send(start=True, chunk=0).done()
        old = house.send(chunk=1)
        reply = house.send(start=True, chunk=0)
        assert await old.done() == ["SESSION_FAILED"]
        assert await reply.done() == ["READY"] + ["FRAMES"] * 3
        assert reply.answers[1].frame_index == 0
        first, second = house.stages.sessions.values()
        assert first.closed == ["decode", "denoise", "condition"]
        assert second.denoised == 1
        await house.idle()

    run(scenario())


def test_a_foreign_token_sees_no_session_and_does_no_harm() -> None:
    async def scenario() -> None:
        house = House()
        await house.send(start=True, token=b"mine").done()
        assert await house.send(chunk=0, token=b"other").done() == ["NO_SESSION"]
        assert await house.send(end=True).done() == ["NO_SESSION"]
        assert await house.send(start=True, token=b"other").done() == ["NO_SESSION"]
        assert await house.send(chunk=0, token=b"mine").done() == ["FRAMES"] * 3
        await house.idle()

    run(scenario())


def test_a_start_that_opens_nothing_goes_on_with_the_live_session() -> None:
    async def scenario() -> None:
        house = House()
        await house.send(start=True, chunk=0, token=b"mine").done()
        reply = FakeReply()
        control = Control(1, house.clock(), "w")
        house.service.accept(Request(1, b"mine", control=control, starts=True), reply)
        assert await reply.done() == ["FRAMES"] * 3
        reply = FakeReply()
        house.service.accept(Request(2, b"mine", control=control, starts=True), reply)
        assert await reply.done() == ["NO_SESSION"]
        reply = FakeReply()
        house.service.accept(Request(2, b"mine", starts=True), reply)
        assert await reply.done() == ["BAD_REQUEST"]
        await house.idle()

    run(scenario())


def test_an_opening_that_is_refused_leaves_nothing() -> None:
    async def scenario() -> None:
        house = House()
        reply = house.send(start=True, image=b"broken", chunk=0)
        assert await reply.done() == ["BAD_REQUEST"]
        assert reply.answers[0].message == "the image cannot be read"
        await asyncio.sleep(10)
        assert await house.send(start=True, chunk=0).done() == ["READY"] + ["FRAMES"] * 3
        await house.idle()

    run(scenario())


STAGE_CALLS = [("condition", 3), ("denoise", 1), ("commit", 1), ("decode", 1)]


@pytest.mark.parametrize("call", STAGE_CALLS)
def test_a_failing_stage_ends_its_session_only(call: tuple[str, int]) -> None:
    async def scenario() -> None:
        house = House()
        house.stages.costs = {"condition": 0.1, "denoise": 1, "commit": 0.5, "decode": 0.5}
        await house.send(1, start=True, chunk=0).done()
        await asyncio.sleep(10)
        house.stages.fail_on = call
        replies = [house.send(1, chunk=1), house.send(1, chunk=2)]
        assert {(await reply.done())[-1] for reply in replies} == {"STAGE_FAILED"}
        assert await house.send(1, chunk=3).done() == ["SESSION_FAILED"]
        house.stages.fail_on = None
        assert await house.send(2, start=True, chunk=0).done() == ["READY"] + ["FRAMES"] * 3
        assert await house.send(1, end=True).done() == ["SESSION_FAILED"]
        assert await house.send(1, start=True, chunk=0).done() == ["READY"] + ["FRAMES"] * 3
        await house.idle()

    run(scenario())


@pytest.mark.parametrize("stage", ["prompt", "condition", "denoise", "decode"])
def test_a_failing_opening_releases_what_was_opened(stage: str) -> None:
    async def scenario() -> None:
        stages = FakeStages()
        stages.fail_on = (stage, 0)
        house = House(stages)
        assert await house.send(start=True).done() == ["STAGE_FAILED"]
        await house.idle()

    run(scenario())


def test_a_silent_session_ends_and_its_id_is_unknown() -> None:
    async def scenario() -> None:
        house = House(session_idle_seconds=50)
        await house.send(start=True, chunk=0).done()
        await asyncio.sleep(45)
        assert len(house.service.table) == 1
        await asyncio.sleep(10)
        assert len(house.service.table) == 0
        assert await house.send(chunk=1).done() == ["NO_SESSION"]
        await house.idle()

    run(scenario())


def test_a_client_that_is_gone_ends_its_session() -> None:
    async def scenario() -> None:
        house = House()
        await house.send(start=True).done()
        reply = house.send(chunk=0)
        reply.gone = True
        await asyncio.sleep(10)
        assert len(house.service.table) == 0
        await house.idle()

    run(scenario())


def test_end_finishes_what_was_admitted_and_waits_for_the_commit() -> None:
    async def scenario() -> None:
        house = House()
        first = house.send(start=True, chunk=0)
        second = house.send(chunk=1)
        closing = house.send(end=True)
        assert await closing.done() == ["CLOSED"]
        assert (first.final.is_set(), second.final.is_set()) == (True, True)
        assert closing.answers[0].info["chunks"] == 2
        (seen,) = house.stages.sessions.values()
        assert (seen.committed, seen.conditions) == (2, 2)
        await house.idle()

    run(scenario())


def test_end_while_conditions_are_encoded_needs_no_more_of_them() -> None:
    async def scenario() -> None:
        stages = FakeStages()
        stages.costs = {"condition": 5}
        house = House(stages)
        await house.send(start=True).done()
        assert await house.send(end=True).done() == ["CLOSED"]
        (seen,) = house.stages.sessions.values()
        assert seen.conditions <= 2
        await house.idle()

    run(scenario())


def test_end_of_a_refused_control_closes_all_the_same() -> None:
    async def scenario() -> None:
        house = House()
        await house.send(start=True).done()
        assert await house.send(chunk=7, end=True).done() == ["OUT_OF_ORDER", "CLOSED"]
        await house.idle()

    run(scenario())


def test_shutting_down_answers_everybody() -> None:
    async def scenario() -> None:
        stages = FakeStages()
        stages.costs = {"denoise": 100}
        house = House(stages)
        await house.send(start=True).done()
        reply = house.send(chunk=0)
        await house.service.shut_down(5)
        assert reply.statuses == ["SHUTTING_DOWN"]
        late = house.send(start=True)
        assert await late.done() == ["SHUTTING_DOWN"]
        house.stages.check_released()

    run(scenario())


async def _client(house: House, dice: random.Random, session_id: int) -> None:
    """A client that does right and wrong things at random, and checks every answer."""
    next_chunk, replies = 0, []
    reply = house.send(session_id, start=True, chunk_count=12, seconds=dice.random() * 0.2)
    replies.append((reply, None))
    for _ in range(dice.randrange(1, 14)):
        await asyncio.sleep(dice.choice([0, 0, dice.random() * 4]))
        wrong = dice.random() < 0.15
        chunk = next_chunk + dice.choice([-1, 1, 2]) if wrong else next_chunk
        if chunk < 0:
            continue
        session = house.service.table.find(session_id)
        assert session is not None
        reply = house.send(session_id, chunk=chunk, seconds=dice.random() * 0.2)
        if session.controls.next_index > next_chunk:
            assert chunk == next_chunk
            replies.append((reply, chunk))
            next_chunk += 1
        else:
            (refusal,) = await reply.done()
            codes = {-1: "DUPLICATE", 0: "WINDOW_FULL"}
            limit = "LENGTH_LIMIT" if next_chunk == 12 and chunk == 12 else "OUT_OF_ORDER"
            assert refusal == codes.get(chunk - next_chunk, limit) or refusal == limit
    way = dice.choice(["end", "end", "vanish", "restart"])
    if way == "vanish":
        for reply, _ in replies:
            reply.gone = True
        return
    if way == "restart":
        house.send(session_id, start=True, end=True)
        return
    await house.send(session_id, end=True).done()
    frames = 0
    for reply, chunk in replies:
        assert reply.final.is_set()
        if chunk is None:
            assert reply.statuses == ["READY"]
            continue
        assert len(reply.answers) == 3
        for answer in reply.answers:
            assert (answer.status, answer.chunk_index) == ("FRAMES", chunk), reply.answers
            assert answer.frame_index == frames
            frames += len(answer.frames)
            assert all(frame[1] == chunk for frame in answer.frames)


def _interleaving(seed: int) -> None:
    async def scenario() -> None:
        dice = random.Random(seed)
        depth = dice.choice([0, 1, 2, 2])
        house = House(FakeStages(seed, depth), max_sessions=4, prefetch_depth=depth)
        await asyncio.gather(*(_client(house, dice, session_id) for session_id in range(4)))
        await house.idle()

    run(scenario())


@pytest.mark.parametrize("block", range(10))
def test_thousands_of_interleavings_keep_order_bounds_and_leave_nothing(block: int) -> None:
    for seed in range(block * 200, block * 200 + 200):
        _interleaving(seed)
