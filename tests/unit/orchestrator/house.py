"""A service over fake stages, for tests in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from lingbot_triton.errors import BadRequest
from lingbot_triton.options import SessionOptions
from lingbot_triton.orchestrator.cursors import Control
from lingbot_triton.orchestrator.pipeline import Pipeline
from lingbot_triton.orchestrator.recovery import Workers
from lingbot_triton.orchestrator.requests import Request, Start
from lingbot_triton.orchestrator.service import Service
from lingbot_triton.settings import Settings
from tests.unit.orchestrator.fakes import FakeReply, FakeStages


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
