"""Stages that only take (random, virtual) time and check what they are called with."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from lingbot_triton.errors import StageFailed
from lingbot_triton.orchestrator.cursors import Condition, Control, Latent
from lingbot_triton.orchestrator.requests import Answer
from lingbot_triton.orchestrator.session import Session
from lingbot_triton.world.geometry import video_frames


@dataclass
class Seen:
    """What the stages saw of one session."""

    conditions: int = 0
    denoised: int = 0
    committed: int = 0
    decoded: list[tuple[int, int, int]] = field(default_factory=list)
    open: set[str] = field(default_factory=set)
    closed: list[str] = field(default_factory=list)
    running: set[str] = field(default_factory=set)


class FakeStages:
    """Implements `pipeline.Stages`; raises AssertionError when the pipeline breaks a rule."""

    def __init__(
        self, seed: int = 0, depth: int = 2, steady_from: int | None = None, mean: float = 1.0
    ) -> None:
        self.random = random.Random(seed)
        self.depth = depth
        self.mean = mean
        self.steady_from = steady_from
        self.sessions: dict[str, Seen] = defaultdict(Seen)
        self.most_alive = 0
        self.fail_on: tuple[str, int] | None = None
        """(stage name, chunk index) of the call that fails."""
        self.costs: dict[str, float] = {}
        self.stopped: dict[str, asyncio.Event] = {}
        self.once_stopped: set[str] = set()

    async def _work(self, session: Session, name: str, index: int = 0) -> Seen:
        seen = self.sessions[session.epoch]
        stage = "denoise" if name == "commit" else name
        assert stage not in seen.running, f"two calls of {stage} at once"
        assert stage in seen.open or stage == "prompt", f"{name} before open"
        assert stage not in seen.closed, f"{name} after close"
        seen.running.add(stage)
        try:
            await asyncio.sleep(self.costs.get(name, self.random.random() * 2 * self.mean))
            await self._goes_on(stage)
        finally:
            seen.running.discard(stage)
        if self.fail_on == (name, index):
            raise StageFailed(f"{name} of chunk {index} failed")
        return seen

    def stop(self, stage: str) -> None:
        """From now on `stage` answers nothing, until `go_on`."""
        self.stopped[stage] = asyncio.Event()
        self.once_stopped.add(stage)

    def go_on(self, stage: str) -> None:
        """`stage` answers what it was asked."""
        self.stopped.pop(stage).set()

    async def _goes_on(self, stage: str) -> None:
        if stage in self.stopped:
            await self.stopped[stage].wait()

    def _alive(self, session: Session) -> None:
        seen = self.sessions[session.epoch]
        alive = seen.conditions - seen.denoised
        self.most_alive = max(self.most_alive, alive)
        if self.steady_from is None:
            assert alive <= max(self.depth, 1), f"{alive} conditions alive"

    async def _open(self, session: Session, stage: str) -> None:
        self.sessions[session.epoch].open.add(stage)
        await self._work(session, stage)

    async def open_condition(self, session: Session, picture: Any) -> None:
        await self._open(session, "condition")

    async def encode_prompt(self, session: Session, prompt: str) -> Any:
        await self._work(session, "prompt")
        return prompt

    async def open_denoise(self, session: Session, context: Any) -> None:
        await self._open(session, "denoise")

    async def open_decode(self, session: Session) -> None:
        await self._open(session, "decode")

    async def condition(self, session: Session, chunk_index: int) -> Condition:
        seen = self.sessions[session.epoch]
        assert chunk_index == seen.conditions
        seen.conditions += 1
        self._alive(session)
        await self._work(session, "condition", chunk_index)
        steady = self.steady_from is not None and chunk_index >= self.steady_from
        return Condition(("condition", session.epoch, chunk_index), steady)

    async def denoise(self, session: Session, control: Control, condition: Condition) -> Latent:
        seen = self.sessions[session.epoch]
        index = control.chunk_index
        expected = index if self.steady_from is None else min(index, self.steady_from)
        assert condition.tensor == ("condition", session.epoch, expected)
        assert seen.committed == index, "denoise before the last chunk's commit"
        await self._work(session, "denoise", index)
        seen.denoised += 1
        return Latent(("latent", session.epoch, index), (0.25,) * 4)

    async def commit(self, session: Session, chunk_index: int) -> None:
        seen = self.sessions[session.epoch]
        assert seen.denoised == chunk_index + 1
        await self._work(session, "commit", chunk_index)
        seen.committed += 1

    async def decode(self, session: Session, latent: Latent, first: int, count: int) -> Any:
        kind, epoch, index = latent.tensor
        assert (kind, epoch) == ("latent", session.epoch)
        seen = await self._work(session, "decode", index)
        seen.decoded.append((index, first, count))
        frames = video_frames(count, first=index == 0 and first == 0)
        return [(session.epoch, index, first)] * frames

    async def close(self, session: Session, stage: str) -> None:
        seen = self.sessions[session.epoch]
        working = seen.running - self.once_stopped if not self._early(seen, stage) else set()
        assert not working | (seen.running & {stage}), f"{stage} closed while {seen.running} work"
        await asyncio.sleep(self.random.random() * self.mean)
        await self._goes_on(stage)
        seen.closed.append(stage)

    def check_released(self) -> None:
        """Every session gave back all it opened, in the order the contract names."""
        for seen in self.sessions.values():
            assert set(seen.closed) == seen.open
            order = [s for s in ("decode", "denoise", "condition") if s in seen.open]
            late = self.once_stopped | {s for s in seen.open if self._early(seen, s)}
            assert [s for s in seen.closed if s not in late] == [s for s in order if s not in late]

    def _early(self, seen: Seen, stage: str) -> bool:
        """Whether nothing more is asked of a stage, which is let go of before the others."""
        if self.steady_from is None:
            return False
        return stage == "condition" and seen.conditions > self.steady_from


class FakeReply:
    """Collects the answers of one request."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.answers: list[Answer] = []
        self.final = asyncio.Event()
        self.gone = False
        self.seconds = seconds

    async def send(self, answer: Answer, *, last: bool) -> None:
        assert not self.final.is_set(), f"{answer.status} after the final answer"
        await asyncio.sleep(self.seconds)
        self.answers.append(answer)
        if last:
            self.final.set()

    @property
    def finished(self) -> bool:
        return self.final.is_set()

    def cancelled(self) -> bool:
        return self.gone

    @property
    def statuses(self) -> list[str]:
        return [answer.status for answer in self.answers]

    async def done(self) -> list[str]:
        await self.final.wait()
        return self.statuses
