"""The orchestrator as a Triton model: requests in, `service.Service`, responses out."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from lingbot_triton.errors import BadRequest
from lingbot_triton.orchestrator.picture import load_picture
from lingbot_triton.orchestrator.pipeline import Pipeline
from lingbot_triton.orchestrator.requests import CLOSED, Response
from lingbot_triton.orchestrator.responses import error_response
from lingbot_triton.orchestrator.service import Service
from lingbot_triton.triton.administration import DRAIN, GRACE, PROBE
from lingbot_triton.triton.calls import TritonStages
from lingbot_triton.triton.codec import decode_request
from lingbot_triton.triton.configuration import instance_settings
from lingbot_triton.triton.lifeline import hold_on_to_server
from lingbot_triton.triton.prometheus import TritonMetrics
from lingbot_triton.triton.response_sink import TritonResponseSink
from lingbot_triton.triton.secret import forget_secret, server_secret
from lingbot_triton.triton.tensors import log_to_triton, to_arrays
from lingbot_triton.triton.threads import thread_pool
from lingbot_triton.triton.workers import TritonWorkers
from lingbot_triton.world.family import find_family

log = logging.getLogger(__name__)
SENDS_IN_FLIGHT = 6
PICTURES_IN_FLIGHT = 2
ADMINISTRATION = (DRAIN, PROBE)
RETURN_DELAY_SECONDS = 0.002
"""Works around a leak in the Python backend: a future that completes before the backend registered
it is never freed. Delays only this session's next request."""


class OrchestratorModel:
    """One instance, decoupled: every request gets its responses in the background."""

    def initialize(self, args: dict[str, str]) -> None:
        log_to_triton(args["model_name"])
        hold_on_to_server()
        self._settings = settings = instance_settings(args)
        self._sends = thread_pool(SENDS_IN_FLIGHT, "send")
        self._pictures = thread_pool(PICTURES_IN_FLIGHT, "picture")
        self._secret = server_secret()
        self._sending: set[asyncio.Task[None]] = set()
        self._workers = TritonWorkers()
        self._stages = TritonStages(self._secret, settings.calls_per_stage, self._workers)
        self._metrics = TritonMetrics()
        name = f"simulated {settings.simulated}" if settings.simulated else settings.checkpoint
        self._service = Service(
            settings,
            Pipeline(self._stages, time.monotonic, self._metrics, settings.stage_timeout_seconds),
            self._load_picture,
            time.monotonic,
            find_family(Path(settings.checkpoint)).chunk_latent_frames,
            {
                "model": Path(name).name,
                "simulated": bool(settings.simulated),
                "preset": settings.preset,
            },
            self._workers,
        )
        assert self._service.recovery is not None
        self._stages.on_worker_death = self._service.recovery.on_worker_death

    async def execute(self, requests: list[Any]) -> None:
        """Admit in order of arrival. Triton hands over a session's next request on return."""
        now = time.monotonic()
        for request in requests:
            sink = TritonResponseSink(request.get_response_sender(), self._sends)
            try:
                self._take(request, sink, now)
            except Exception as error:  # what escapes from here never gets a response
                log.exception("a request met an internal error")
                self._spawn(sink.send(error_response(error), final=True))
        await asyncio.sleep(RETURN_DELAY_SECONDS)

    def _take(self, request: Any, sink: TritonResponseSink, now: float) -> None:
        session_id, flags = request.correlation_id(), request.flags()
        parameters = json.loads(request.parameters() or "{}")
        operation = next((name for name in ADMINISTRATION if name in parameters), None)
        if operation is not None:
            self._administer(operation, parameters, sink)
            return
        arrays = to_arrays(request.inputs())
        self._service.accept(decode_request(arrays, session_id, flags, now, self._settings), sink)

    def _administer(
        self, operation: str, parameters: dict[str, Any], sink: TritonResponseSink
    ) -> None:
        """The program that started the server, and knows its secret, may end every session.

        Once Triton itself is stopping it takes no more calls, so this must come before.
        """
        self._service.watch()
        if not hmac.compare_digest(str(parameters[operation]).encode(), self._secret):
            error = BadRequest(f"parameter {operation} does not hold this server's secret")
            work = sink.send(Response(error.code, str(error)), final=True)
        elif operation == DRAIN:
            grace = float(parameters.get(GRACE, self._settings.drain_seconds))
            work = self._end_sessions(sink, grace)
        else:
            work = sink.send(Response(CLOSED), final=True)
        self._spawn(work)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._sending.add(task := asyncio.get_running_loop().create_task(work))
        task.add_done_callback(self._sending.discard)

    async def _end_sessions(self, sink: TritonResponseSink, grace: float) -> None:
        await self._service.shut_down(grace)
        await sink.send(Response(CLOSED), final=True)

    async def _load_picture(self, image: bytes) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pictures, load_picture, image, self._settings)

    def finalize(self) -> None:
        """Triton calls this when no request is left; the workers drop their states themselves."""
        self._stages.shut_down()
        self._workers.shut_down()
        self._metrics.shut_down()
        self._sends.shutdown(wait=False, cancel_futures=True)
        self._pictures.shutdown(wait=False, cancel_futures=True)
        forget_secret()
