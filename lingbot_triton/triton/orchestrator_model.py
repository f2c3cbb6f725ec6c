"""The orchestrator as a Triton model: requests in, `service.Service`, responses out."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from lingbot_triton import protocol
from lingbot_triton.errors import BadRequest, StageFailed
from lingbot_triton.orchestrator.picture import load_picture
from lingbot_triton.orchestrator.pipeline import Pipeline
from lingbot_triton.orchestrator.requests import CLOSED, Answer
from lingbot_triton.orchestrator.responses import refusal
from lingbot_triton.orchestrator.service import Service
from lingbot_triton.triton.administration import DRAIN, GRACE, PROBE
from lingbot_triton.triton.bls import TritonStages
from lingbot_triton.triton.codec import decode_request, encode_answer
from lingbot_triton.triton.configuration import instance_settings
from lingbot_triton.triton.lifeline import hold_on_to_server
from lingbot_triton.triton.prometheus import TritonMetrics
from lingbot_triton.triton.secret import forget_secret, server_secret
from lingbot_triton.triton.tensors import log_to_triton, to_arrays, to_tensor, to_tensors
from lingbot_triton.triton.threads import thread_pool

log = logging.getLogger(__name__)
SENDS_IN_FLIGHT = 6
PICTURES_IN_FLIGHT = 2
ADMINISTRATION = (DRAIN, PROBE)
RETURN_DELAY_SECONDS = 0.002
"""The Python backend keeps for ever what it knows of an `execute` that returned before the
backend noted it down; nothing but this session's next request waits for the return."""


class OrchestratorModel:
    """One instance, decoupled: every request is answered in the background, whatever happens."""

    def initialize(self, args: dict[str, str]) -> None:
        log_to_triton(args["model_name"])
        hold_on_to_server()
        self._settings = settings = instance_settings(args)
        self._sends = thread_pool(SENDS_IN_FLIGHT, "send")
        self._pictures = thread_pool(PICTURES_IN_FLIGHT, "picture")
        self._secret = server_secret()
        self._answers: set[asyncio.Task[None]] = set()
        self._stages = TritonStages(self._secret, settings.calls_per_stage)
        self._metrics = TritonMetrics()
        name = f"simulated {settings.simulated}" if settings.simulated else settings.checkpoint
        self._service = Service(
            settings,
            Pipeline(self._stages, time.monotonic, self._metrics, settings.stage_timeout_seconds),
            self._load_picture,
            time.monotonic,
            {
                "model": Path(name).name,
                "simulated": bool(settings.simulated),
                "preset": settings.preset,
            },
            self._stages,
        )
        assert self._service.recovery is not None
        self._stages.on_death = self._service.recovery.died

    async def execute(self, requests: list[Any]) -> None:
        """Admit in order of arrival. Triton hands over a session's next request on return."""
        now = time.monotonic()
        for request in requests:
            reply = TritonReply(request.get_response_sender(), self._sends)
            try:
                self._take(request, reply, now)
            except Exception as error:  # what escapes from here, Triton answers never
                log.exception("a request met an internal error")
                self._answer(reply.send(refusal(error), last=True))
        await asyncio.sleep(RETURN_DELAY_SECONDS)

    def _take(self, request: Any, reply: TritonReply, now: float) -> None:
        session_id, flags = request.correlation_id(), request.flags()
        parameters = json.loads(request.parameters() or "{}")
        operation = next((name for name in ADMINISTRATION if name in parameters), None)
        if operation is not None:
            self._administer(operation, parameters, reply)
            return
        arrays = to_arrays(request.inputs())
        self._service.accept(decode_request(arrays, session_id, flags, now, self._settings), reply)

    def _administer(self, operation: str, parameters: dict[str, Any], reply: TritonReply) -> None:
        """Whoever started the server, and knows its secret, may ask it to end every session.

        Once Triton itself is stopping it takes no more calls, so this must come before.
        """
        self._service.watch()
        if not hmac.compare_digest(str(parameters[operation]).encode(), self._secret):
            error = BadRequest(f"parameter {operation} does not hold this server's secret")
            answer = reply.send(Answer(error.code, str(error)), last=True)
        elif operation == DRAIN:
            grace = float(parameters.get(GRACE, self._settings.drain_seconds))
            answer = self._end_sessions(reply, grace)
        else:
            answer = reply.send(Answer(CLOSED), last=True)
        self._answer(answer)

    def _answer(self, answer: Coroutine[Any, Any, None]) -> None:
        self._answers.add(task := asyncio.get_running_loop().create_task(answer))
        task.add_done_callback(self._answers.discard)

    async def _end_sessions(self, reply: TritonReply, grace: float) -> None:
        await self._service.shut_down(grace)
        await reply.send(Answer(CLOSED), last=True)

    async def _load_picture(self, image: bytes) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pictures, load_picture, image, self._settings)

    def finalize(self) -> None:
        """Triton calls this when no request is left; the workers drop their states themselves."""
        self._stages.shut_down()
        self._metrics.shut_down()
        self._sends.shutdown(wait=False, cancel_futures=True)
        self._pictures.shutdown(wait=False, cancel_futures=True)
        forget_secret()


class TritonReply:
    """`service.Reply` over a Triton response sender; sending blocks, so it has its own threads."""

    def __init__(self, sender: Any, pool: ThreadPoolExecutor) -> None:
        self._sender = sender
        self._pool = pool
        self._lock = threading.Lock()
        self._finished = False

    async def send(self, answer: Answer, *, last: bool) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._pool, self._send, answer, last)

    def _send(self, answer: Answer, last: bool) -> None:
        with self._lock:
            if self._finished:
                return
            self._finished = last
            flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0
            try:
                tensors = to_tensors(encode_answer(answer))
                if answer.frames is not None:
                    tensors.append(to_tensor(protocol.FRAMES.name, answer.frames))
                self._sender.send(pb_utils.InferenceResponse(tensors), flags=flags)
            except Exception:
                # The client is gone, or Triton refused the response. The request must end anyway.
                log.exception("a response could not be sent")
                if last:
                    self._sender.send(flags=flags)
                elif answer.frames is not None and not self._sender.is_cancelled():
                    raise StageFailed("frames could not be sent") from None
            finally:
                if last:
                    # Triton does not unload the model while a sender is alive, and a failure's
                    # traceback may keep this reply for long.
                    self._sender = None

    @property
    def finished(self) -> bool:
        return self._finished

    def cancelled(self) -> bool:
        """Asking after the final response, or during it, kills the whole server."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            return not self._finished and bool(self._sender.is_cancelled())
        finally:
            self._lock.release()
