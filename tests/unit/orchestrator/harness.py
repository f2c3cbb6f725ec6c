"""A service over fake stages, for tests in virtual time."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import numpy as np

from lingbot_triton.errors import BadRequest
from lingbot_triton.options import SessionOptions
from lingbot_triton.orchestrator.events import Control
from lingbot_triton.orchestrator.interfaces import Workers
from lingbot_triton.orchestrator.pipeline import Pipeline
from lingbot_triton.orchestrator.requests import Request, Start
from lingbot_triton.orchestrator.service import Service
from lingbot_triton.settings import Settings
from lingbot_triton.world.family import WORLD_FAST
from tests.unit.orchestrator.fakes import FakeSink, FakeStages


async def _picture(image: bytes) -> Any:
    await asyncio.sleep(0)
    if image == b"broken":
        raise BadRequest("the image cannot be read")
    return np.zeros((64, 96, 3), np.uint8)


class _InternalErrors(logging.Handler):
    """Notes internal errors, which a session's failure would hide."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.messages.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


class ServiceHarness:
    """A service over fake stages, with short names for what a client does."""

    def __init__(
        self, stages: FakeStages | None = None, workers: Workers | None = None, **settings: Any
    ) -> None:
        self.stages = stages or FakeStages()
        clock = asyncio.get_running_loop().time
        self.clock = clock
        known = Settings(**settings)
        pipeline = Pipeline(self.stages, clock, timeout=known.stage_timeout_seconds)
        chunk = WORLD_FAST.chunk_latent_frames
        self.service = Service(known, pipeline, _picture, clock, chunk, workers=workers)
        self._errors = _InternalErrors()
        logging.getLogger("lingbot_triton").addHandler(self._errors)

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
    ) -> FakeSink:
        sink = FakeSink(seconds, self.stages.rules)
        opening = Start(image, "a castle", SessionOptions(**options)) if start else None
        control = None if chunk is None else Control(chunk, self.clock(), "w")
        request = Request(session_id, token, opening, end, control, starts=start)
        self.service.accept(request, sink)
        return sink

    async def idle(self) -> None:
        """Let everything that is under way end, then stop the service and look for leaks."""
        await self.service.shut_down(1e6)
        logging.getLogger("lingbot_triton").removeHandler(self._errors)
        assert len(self.service.table) == 0
        self.stages.rules.check()
        assert self._errors.messages == []
        self.stages.check_released()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.sleep(0)
        assert not [task for task in left if not task.done()]
