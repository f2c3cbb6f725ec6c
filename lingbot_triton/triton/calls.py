"""The stages as the orchestrator reaches them: one blocking BLS call to another model at a time.

Each stage has a thread pool of its own. The pool is also the bound on calls in flight: Triton
gives an instance 32 threads for calls and responses together, and one call too many stops it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import triton_python_backend_utils as pb_utils

from lingbot_triton import protocol
from lingbot_triton.errors import StageDead, StageFailed
from lingbot_triton.orchestrator.interfaces import Parameters, Tensors
from lingbot_triton.orchestrator.session import Session
from lingbot_triton.stage import STAGES, Operation, Stage
from lingbot_triton.triton.codec import FLAG_END, FLAG_START
from lingbot_triton.triton.tensors import from_triton_error, to_tensors
from lingbot_triton.triton.threads import thread_pool
from lingbot_triton.triton.workers import TritonWorkers

PROMPT_CALLS = 2
PING = Operation("ping")
FLAGS = {"open": FLAG_START, "close": FLAG_END}
"""Operations that begin and end a stage's sequence."""


class TritonStages:
    """`interfaces.Stages` over BLS requests."""

    def __init__(self, secret: bytes, calls_per_stage: int, workers: TritonWorkers) -> None:
        self._proof = {protocol.SECRET: secret.decode()}
        self._workers = workers
        self.on_worker_death: Callable[[str], bool] = lambda stage: False
        """Called with a stage whose worker was found dead; whether another one is known to live."""
        self._pools = {
            stage.name: thread_pool(
                calls_per_stage if stage.has_sessions else PROMPT_CALLS, stage.name
            )
            for stage in STAGES
        }
        # One for each: a stopped worker's ping keeps a thread, and must not keep the others'.
        self._pings = thread_pool(len(STAGES), "ping")

    def shut_down(self) -> None:
        for pool in (*self._pools.values(), self._pings):
            pool.shutdown(wait=False, cancel_futures=True)

    async def call(
        self,
        session: Session,
        stage: Stage,
        operation: Operation,
        inputs: Tensors,
        parameters: Parameters,
    ) -> Tensors:
        """Outputs as numpy arrays of their own, or, where they are passed on, Triton's tensors."""
        address = session.correlation_id_at(stage.name) if stage.has_sessions else None
        flags = FLAGS.get(operation.name, 0)
        pool = self._pools[stage.name]
        outputs = await self._run(pool, stage, operation, address, flags, inputs, parameters)
        if operation.passed_on:
            return outputs
        # A session keeps conditions for as long as the person takes to act: a copy leaves
        # Triton's shared memory free for others.
        return {name: tensor.as_numpy().copy() for name, tensor in outputs.items()}

    async def ping(self, stage: Stage, session: Session | None = None) -> None:
        """A request that a worker responds to without doing anything."""
        pool, address, flags = self._pings, None, 0
        if session is not None:
            pool, address = self._pools[stage.name], session.correlation_id_at(stage.name)
        elif stage.has_sessions:
            address, flags = uuid.uuid4().hex, FLAG_START | FLAG_END
        await self._run(pool, stage, PING, address, flags, {}, {})

    async def _run(
        self,
        pool: ThreadPoolExecutor,
        stage: Stage,
        operation: Operation,
        address: str | None,
        flags: int,
        inputs: Tensors,
        parameters: Parameters,
    ) -> Tensors:
        """One request to a model and its one response; raises what the model responded with."""
        loop = asyncio.get_running_loop()
        generation = self._workers.generation(stage.name)
        parameters = {"op": operation.name, **parameters, **self._proof}
        names = [output.name for output in operation.outputs]
        arguments = stage.name, address, flags, inputs, parameters, names
        try:
            return await loop.run_in_executor(pool, self._execute, *arguments)
        except StageDead as error:
            if generation != self._workers.generation(stage.name):
                raise StageFailed(str(error)) from None  # that death is known, and over
            error.others_live = self.on_worker_death(stage.name)
            raise

    def _execute(
        self,
        model: str,
        address: str | None,
        flags: int,
        inputs: Tensors,
        parameters: Parameters,
        outputs: Iterable[str],
    ) -> Tensors:
        if self._workers.all_dead(model):
            # Triton takes a second to say so, for each call and one after another.
            raise StageDead(model, f"the {model} worker has died")
        generation = self._workers.generation(model)
        sequence = {} if address is None else {"correlation_id": address, "flags": flags}
        request = pb_utils.InferenceRequest(
            model_name=model,
            requested_output_names=list(outputs),
            inputs=to_tensors(inputs),
            parameters=parameters,
            **sequence,
        )
        response = request.exec()
        if response.has_error():
            error = from_triton_error(model, response.error().message())
            # A response that comes after a reload is not about the processes that live now.
            if isinstance(error, StageDead) and generation == self._workers.generation(model):
                self._workers.mark_dead(error)
            raise error
        tensors = {tensor.name(): tensor for tensor in response.output_tensors()}
        return {name: tensors[name] for name in outputs}
