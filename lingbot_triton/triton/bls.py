"""The stages as the orchestrator reaches them: one blocking call to another model at a time.

Each stage has a thread pool of its own. The pool is also the bound on calls in flight: Triton
gives an instance 32 threads for calls and responses together, and one call too many stops it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from lingbot_triton import protocol
from lingbot_triton import stage as stages
from lingbot_triton.errors import StageDead, StageFailed
from lingbot_triton.orchestrator.cursors import Condition, Control, Latent
from lingbot_triton.orchestrator.session import Session
from lingbot_triton.protocol import ModelSpec
from lingbot_triton.stage import (
    CONDITION_STAGE,
    DECODE_STAGE,
    DENOISE_STAGE,
    PROMPT_STAGE,
    STAGES,
    find_stage,
)
from lingbot_triton.triton.codec import FLAG_END, FLAG_START
from lingbot_triton.triton.shared_memory import (
    YOUNG_SECONDS,
    own_region_prefix,
    remove_orphans,
)
from lingbot_triton.triton.system import children, command_line, model_of
from lingbot_triton.triton.tensors import from_triton_error, to_tensors
from lingbot_triton.triton.threads import thread_pool

PROMPT_CALLS = 2
OPENING_ATTEMPTS = 4
RELOAD_SECONDS = 10.0
log = logging.getLogger(__name__)


class TritonStages:
    """`pipeline.Stages` over BLS requests."""

    def __init__(self, secret: bytes, calls_per_stage: int) -> None:
        self._proof: dict[str, str | int] = {protocol.SECRET: secret.decode()}
        self.on_death: Callable[[str], bool] = lambda stage: False
        """Told a stage whose worker was found dead; whether another one of it is known to live."""
        self._pools = {
            spec.name: thread_pool(
                calls_per_stage if spec.sequence_slots else PROMPT_CALLS, spec.name
            )
            for spec in STAGES
        }
        self._reloaded = {spec.name: 0 for spec in STAGES}
        self._extinct: set[str] = set()
        # One for each: a stopped worker's ping keeps a thread, and must not keep the others'.
        self._pings = thread_pool(len(STAGES), "ping")
        self._reloads = thread_pool(1, "reload")

    def shut_down(self) -> None:
        for pool in (*self._pools.values(), self._pings, self._reloads):
            pool.shutdown(wait=False, cancel_futures=True)

    async def encode_prompt(self, session: Session, prompt: str) -> Any:
        spec = PROMPT_STAGE
        inputs = {protocol.PROMPT.name: np.array([prompt.encode()], dtype=object)}
        (context,) = await self._call(spec, None, inputs, {}, 0, (stages.CONTEXT.name,))
        return context

    async def open_condition(self, session: Session, picture: Any) -> None:
        inputs = {stages.PICTURE.name: picture}
        await self._open(CONDITION_STAGE, session, inputs)

    async def open_denoise(self, session: Session, context: Any) -> None:
        inputs = {stages.CONTEXT.name: context}
        (about,) = await self._open(DENOISE_STAGE, session, inputs, (stages.ABOUT.name,))
        session.about = json.loads(about.as_numpy()[0])

    async def open_decode(self, session: Session) -> None:
        await self._open(DECODE_STAGE, session, {})

    async def condition(self, session: Session, chunk_index: int) -> Condition:
        outputs = (stages.CONDITION.name, stages.STEADY.name)
        tensor, steady = await self._step(
            CONDITION_STAGE, session, {}, {"chunk_index": chunk_index}, outputs
        )
        # A session keeps conditions for as long as the person takes to act: a copy leaves
        # Triton's shared memory free for others.
        array = tensor.as_numpy().copy()
        return Condition(array, bool(steady.as_numpy()[0]), array.nbytes)

    async def denoise(self, session: Session, control: Control, condition: Condition) -> Latent:
        inputs = {stages.CONDITION.name: condition.tensor}
        if control.poses is not None:
            inputs[stages.CAMERA_POSES.name] = control.poses
        parameters: dict[str, str | int] = {
            "chunk_index": control.chunk_index,
            "keys": control.keys,
        }
        outputs = (stages.LATENT.name, stages.STEP_MS.name)
        latent, steps = await self._step(DENOISE_STAGE, session, inputs, parameters, outputs)
        return Latent(latent.as_numpy().copy(), tuple((steps.as_numpy() / 1000).tolist()))

    async def commit(self, session: Session, chunk_index: int) -> None:
        spec = DENOISE_STAGE
        parameters: dict[str, str | int] = {"op": "commit", "chunk_index": chunk_index}
        await self._call(spec, _address(session, spec), {}, parameters, 0, ())

    async def decode(self, session: Session, latent: Latent, first: int, count: int) -> Any:
        inputs = {stages.LATENT.name: latent.tensor[:, first : first + count]}
        outputs = (protocol.FRAMES.name,)
        (frames,) = await self._step(DECODE_STAGE, session, inputs, {}, outputs)
        return frames

    async def close(self, session: Session, stage: str) -> None:
        spec = find_stage(stage)
        await self._call(spec, _address(session, spec), {}, {"op": "close"}, FLAG_END, ())

    async def ping(self, stage: str, session: Session | None = None) -> None:
        """`recovery.Workers`: a request that a worker answers without doing anything."""
        spec = find_stage(stage)
        parameters: dict[str, str | int] = {"op": "ping"}
        if session is not None:
            await self._call(spec, _address(session, spec), {}, parameters, 0, ())
            return
        epoch: str | None = uuid.uuid4().hex
        flags = FLAG_START | FLAG_END
        if spec is PROMPT_STAGE:
            epoch, flags = None, 0
        await self._call(spec, epoch, {}, parameters, flags, (), self._pings)

    def extinct(self, stage: str) -> bool:
        """`recovery.Workers`: whether the stage is known to have no living process at all."""
        return stage in self._extinct

    async def reload(self, stage: str) -> None:
        """`recovery.Workers`: unload and load the model, which starts its processes anew."""
        if not controls_models(command_line(os.getppid())):
            # Not tried: a refused request to unload a model may take the whole server down.
            raise StageFailed("this needs tritonserver --model-control-mode=explicit")
        loop = asyncio.get_running_loop()
        self._reloaded[stage] += 1
        await loop.run_in_executor(self._reloads, self._reload, stage)

    def _reload(self, stage: str) -> None:
        server = os.getppid()
        # Unloading a model that has a stopped process takes the whole server down.
        _kill(pid for pid in children(server) if model_of(pid) == stage)
        try:
            pb_utils.unload_model(stage)
            deadline = time.monotonic() + RELOAD_SECONDS
            while pb_utils.is_model_ready(stage) and time.monotonic() < deadline:
                time.sleep(0.05)
            pb_utils.load_model(stage)
        except Exception as error:
            raise StageFailed(str(error)) from None
        self._extinct.discard(stage)

    async def tidy(self) -> None:
        """`recovery.Workers`: remove the shared memory of dead processes.

        Some may be young still, or mapped for a moment by a process that is only being forked.
        """
        for _ in range(3):
            await asyncio.sleep(YOUNG_SECONDS)
            await asyncio.get_running_loop().run_in_executor(self._reloads, _remove_orphans)

    async def _open(
        self,
        spec: ModelSpec,
        session: Session,
        inputs: dict[str, Any],
        outputs: Sequence[str] = (),
    ) -> list[Any]:
        assert session.geometry is not None
        parameters: dict[str, str | int] = {
            "op": "open",
            "height": session.geometry.height,
            "width": session.geometry.width,
            "options": session.options.to_json(),
        }
        attempt = 0
        while True:
            address = _address(session, spec)
            try:
                return await self._call(spec, address, inputs, parameters, FLAG_START, outputs)
            except StageDead as error:
                attempt += 1
                if attempt == OPENING_ATTEMPTS or not error.others_live:
                    raise
                # Triton keeps the slot at the dead worker, so the next one is another's.
                session.addresses[spec.name] = f"{session.epoch}-{attempt}"

    async def _step(
        self,
        spec: ModelSpec,
        session: Session,
        inputs: dict[str, Any],
        parameters: dict[str, str | int],
        outputs: Sequence[str],
    ) -> list[Any]:
        parameters = parameters | {"op": "step"}
        return await self._call(spec, _address(session, spec), inputs, parameters, 0, outputs)

    async def _call(
        self,
        spec: ModelSpec,
        epoch: str | None,
        inputs: dict[str, Any],
        parameters: dict[str, str | int],
        flags: int,
        outputs: Sequence[str],
        pool: ThreadPoolExecutor | None = None,
    ) -> list[Any]:
        """One request to a model and its one response; raises what the model answered with."""
        loop = asyncio.get_running_loop()
        reloaded = self._reloaded[spec.name]
        arguments = (spec, epoch, inputs, parameters, flags, outputs)
        try:
            pool = pool or self._pools[spec.name]
            return await loop.run_in_executor(pool, self._execute, *arguments)
        except StageDead as error:
            if reloaded != self._reloaded[spec.name]:  # its death is known, and over
                raise StageFailed(str(error)) from None
            error.others_live = self.on_death(spec.name)
            raise

    def _execute(
        self,
        spec: ModelSpec,
        epoch: str | None,
        inputs: dict[str, Any],
        parameters: dict[str, str | int],
        flags: int,
        outputs: Sequence[str],
    ) -> list[Any]:
        if spec.name in self._extinct:
            # Triton takes a second to say so, for each call and one after another.
            raise StageDead(spec.name, f"the {spec.name} worker has died")
        reloaded = self._reloaded[spec.name]
        sequence: dict[str, Any] = {}
        if epoch is not None:
            sequence = {"correlation_id": epoch, "flags": flags}
        request = pb_utils.InferenceRequest(
            model_name=spec.name,
            requested_output_names=list(outputs),
            inputs=to_tensors(inputs),
            parameters=parameters | self._proof,
            **sequence,
        )
        response = request.exec()
        if response.has_error():
            error = from_triton_error(spec.name, response.error().message())
            # An answer that comes after a reload is not about the processes that live now.
            if isinstance(error, StageDead) and reloaded == self._reloaded[spec.name]:
                self._bury(error)
            raise error
        by_name = {tensor.name(): tensor for tensor in response.output_tensors()}
        return [by_name[name] for name in outputs]

    def _bury(self, error: StageDead) -> None:
        """Triton gave a process up: it is dead, or stopped, or too slow to say that it is well.

        Were it to go on, its late answers would be taken for those to later requests.
        """
        living = children(os.getppid())
        _kill(pid for pid in living if error.instance in command_line(pid))
        if not any(model_of(pid) == error.stage for pid in children(os.getppid())):
            self._extinct.add(error.stage)


def controls_models(command: Sequence[str]) -> bool:
    """Whether a server started by `command` lets its models load and unload one another."""
    return "--model-control-mode explicit" in " ".join(command).replace("=", " ")


def _kill(processes: Iterable[int]) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _remove_orphans() -> None:
    prefix = own_region_prefix()
    if prefix is not None and (removed := remove_orphans(prefix, os.getppid())):
        log.info("removed shared memory of dead processes: %s", ", ".join(removed))


def _address(session: Session, spec: ModelSpec) -> str:
    """Correlation id of the session at a stage."""
    return session.addresses.get(spec.name, session.epoch)
