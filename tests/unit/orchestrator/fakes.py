"""Stages that only take (random, virtual) time and check what they are called with."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from dataclasses import dataclass, field

from lingbot_triton.errors import StageFailed
from lingbot_triton.orchestrator.interfaces import Parameters, Tensors
from lingbot_triton.orchestrator.requests import Response
from lingbot_triton.orchestrator.session import Session
from lingbot_triton.stage import Operation, Stage
from lingbot_triton.world.geometry import video_frames


@dataclass(frozen=True)
class FakeTensor:
    """Stands for an array: it knows where it comes from, and which latent frames were taken."""

    kind: str
    correlation_id: str
    chunk: int
    frames: slice = field(default_factory=lambda: slice(None))
    nbytes: int = 0

    def __getitem__(self, key: tuple[slice, slice]) -> FakeTensor:
        return FakeTensor(self.kind, self.correlation_id, self.chunk, key[1])


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


class Rules:
    """Rules that the code under test must keep.

    A broken rule raises, and is remembered as well: the task that it is raised in may be cancelled
    or its failure may become a session's, and then only `check` shows it.
    """

    def __init__(self) -> None:
        self.broken: list[str] = []

    def expect(self, kept: bool, rule: str) -> None:
        if not kept:
            self.broken.append(rule)
            raise AssertionError(rule)

    def check(self) -> None:
        assert self.broken == []


class FakeStages:
    """Implements `interfaces.Stages`; notes when the pipeline breaks a rule."""

    def __init__(
        self, seed: int = 0, depth: int = 2, steady_from: int | None = None, mean: float = 1.0
    ) -> None:
        self.rules = Rules()
        self.random = random.Random(seed)
        self.depth = depth
        self.mean = mean
        self.steady_from = steady_from
        self.sessions: dict[str, Seen] = defaultdict(Seen)
        self.most_outstanding = 0
        self.fail_on: tuple[str, int] | None = None
        """(label of a call, chunk index) of the call that fails."""
        self.costs: dict[str, float] = {}
        self.stopped: dict[str, asyncio.Event] = {}
        self.once_stopped: set[str] = set()

    async def call(
        self,
        session: Session,
        stage: Stage,
        operation: Operation,
        inputs: Tensors,
        parameters: Parameters,
    ) -> Tensors:
        method = getattr(self, f"_{stage.name}_{operation.name}", None)
        if method is not None:
            outputs: Tensors = await method(session, inputs, parameters)
            names = {output.name for output in operation.outputs}
            self.rules.expect(set(outputs) == names, f"{stage.name}: {set(outputs)}, not {names}")
            return outputs
        if operation.name == "open":
            return await self._open(session, stage.name)
        assert operation.name == "close"
        await self.close(session, stage.name)
        return {}

    async def ping(self, stage: Stage, session: Session | None = None) -> None:
        """Every fake process lives."""

    async def _work(self, session: Session, label: str, index: int = 0) -> Seen:
        seen, expect = self.sessions[session.correlation_id], self.rules.expect
        stage = "denoise" if label == "commit" else label
        expect(stage not in seen.running, f"two calls of {stage} at once")
        expect(stage in seen.open or stage == "prompt", f"{label} before open")
        expect(stage not in seen.closed, f"{label} after close")
        seen.running.add(stage)
        try:
            await asyncio.sleep(self.costs.get(label, self.random.random() * 2 * self.mean))
            await self._goes_on(stage)
        finally:
            seen.running.discard(stage)
        if self.fail_on == (label, index):
            raise StageFailed(f"{label} of chunk {index} failed")
        return seen

    def stop(self, stage: str) -> None:
        """From now on `stage` responds to nothing, until `go_on`."""
        self.stopped[stage] = asyncio.Event()
        self.once_stopped.add(stage)

    def go_on(self, stage: str) -> None:
        """`stage` responds to what it was asked."""
        self.stopped.pop(stage).set()

    async def _goes_on(self, stage: str) -> None:
        if stage in self.stopped:
            await self.stopped[stage].wait()

    def _note_outstanding(self, session: Session) -> None:
        seen = self.sessions[session.correlation_id]
        outstanding = seen.conditions - seen.denoised
        self.most_outstanding = max(self.most_outstanding, outstanding)
        if self.steady_from is None:
            bounded = outstanding <= max(self.depth, 1)
            self.rules.expect(bounded, f"{outstanding} conditions are outstanding")

    async def _open(self, session: Session, stage: str) -> Tensors:
        self.sessions[session.correlation_id].open.add(stage)
        await self._work(session, stage)
        return {"about": [b"{}"]} if stage == "denoise" else {}

    async def _prompt_encode(self, session: Session, inputs: Tensors, _: Parameters) -> Tensors:
        await self._work(session, "prompt")
        return {"context": inputs["prompt"]}

    async def _condition_step(
        self, session: Session, inputs: Tensors, parameters: Parameters
    ) -> Tensors:
        seen, chunk = self.sessions[session.correlation_id], int(parameters["chunk_index"])
        self.rules.expect(chunk == seen.conditions, "conditions out of order")
        seen.conditions += 1
        self._note_outstanding(session)
        await self._work(session, "condition", chunk)
        steady = self.steady_from is not None and chunk >= self.steady_from
        tensor = FakeTensor("condition", session.correlation_id, chunk)
        return {"condition": tensor, "steady": [steady]}

    async def _denoise_step(
        self, session: Session, inputs: Tensors, parameters: Parameters
    ) -> Tensors:
        name = session.correlation_id
        seen, index = self.sessions[name], int(parameters["chunk_index"])
        expected = index if self.steady_from is None else min(index, self.steady_from)
        condition = FakeTensor("condition", name, expected)
        self.rules.expect(inputs["condition"] == condition, "another chunk's condition")
        self.rules.expect(seen.committed == index, "denoise before the last chunk's commit")
        await self._work(session, "denoise", index)
        seen.denoised += 1
        return {"latent": FakeTensor("latent", name, index), "step_ms": [250.0] * 4}

    async def _denoise_commit(
        self, session: Session, inputs: Tensors, parameters: Parameters
    ) -> Tensors:
        seen, index = self.sessions[session.correlation_id], int(parameters["chunk_index"])
        self.rules.expect(seen.denoised == index + 1, "commit before denoise")
        await self._work(session, "commit", index)
        seen.committed += 1
        return {}

    async def _decode_step(
        self, session: Session, inputs: Tensors, parameters: Parameters
    ) -> Tensors:
        latent: FakeTensor = inputs["latent"]
        name, index = session.correlation_id, latent.chunk
        kind = (latent.kind, latent.correlation_id)
        self.rules.expect(kind == ("latent", name), "another session's latent")
        seen = await self._work(session, "decode", index)
        first, count = latent.frames.start, latent.frames.stop - latent.frames.start
        seen.decoded.append((index, first, count))
        frames = video_frames(count, first=index == 0 and first == 0)
        return {"frames": [(name, index, first)] * frames}

    async def close(self, session: Session, stage: str) -> None:
        seen = self.sessions[session.correlation_id]
        working = seen.running - self.once_stopped if not self._early(seen, stage) else set()
        running = working | (seen.running & {stage})
        self.rules.expect(not running, f"{stage} closed while {seen.running} work")
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
        """Whether the stage is not called any more, and is released before the others."""
        if self.steady_from is None:
            return False
        return stage == "condition" and seen.conditions > self.steady_from


class FakeSink:
    """Collects the responses to one request."""

    def __init__(self, seconds: float = 0.0, rules: Rules | None = None) -> None:
        self.rules = rules or Rules()
        self.responses: list[Response] = []
        self.final = asyncio.Event()
        self.gone = False
        self.seconds = seconds

    async def send(self, response: Response, *, final: bool) -> None:
        self.rules.expect(not self.final.is_set(), f"{response.status} after the final response")
        await asyncio.sleep(self.seconds)
        self.responses.append(response)
        if final:
            self.final.set()

    @property
    def finished(self) -> bool:
        return self.final.is_set()

    def cancelled(self) -> bool:
        return self.gone

    @property
    def statuses(self) -> list[str]:
        return [response.status for response in self.responses]

    async def done(self) -> list[str]:
        await self.final.wait()
        return self.statuses
