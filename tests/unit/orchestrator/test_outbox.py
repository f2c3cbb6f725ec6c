"""The outbox: parts are delivered oldest first, each to its chunk's reader, and kept until then."""

from __future__ import annotations

import asyncio

import pytest

from lingbot_triton.orchestrator.outbox import Outbox
from lingbot_triton.orchestrator.requests import FramePart, Response


def part(chunk_index: int, number: int) -> FramePart:
    return FramePart(chunk_index, 0, None, 1, number, 2, "w", {})


def test_parts_are_delivered_oldest_first_to_the_reader_of_their_chunk() -> None:
    async def scenario() -> None:
        outbox, read = Outbox(), []

        async def respond(response: Response, last: bool) -> None:
            read.append((response.chunk_index, response.info["part"], last))

        outbox.attach(0, respond)
        outbox.attach(1, respond)
        for index in (0, 1):
            for number in (0, 1):
                outbox.put(part(index, number))
        for _ in range(4):
            await outbox.deliver()
        assert read == [(0, 0, False), (0, 1, True), (1, 0, False), (1, 1, True)]

    asyncio.run(scenario())


def test_a_part_is_kept_until_its_reader_has_it_and_none_after_the_end() -> None:
    async def scenario() -> None:
        outbox = Outbox()

        async def fail(response: Response, last: bool) -> None:
            raise ConnectionError

        outbox.attach(0, fail)
        outbox.put(part(0, 0))
        with pytest.raises(ConnectionError):
            await outbox.deliver()
        assert outbox.oldest.part == 0
        outbox.discard()
        with pytest.raises(IndexError):
            await outbox.deliver()

    asyncio.run(scenario())
