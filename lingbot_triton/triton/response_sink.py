"""The way back to a client: a request's response sender."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import triton_python_backend_utils as pb_utils

from lingbot_triton import protocol
from lingbot_triton.errors import StageFailed
from lingbot_triton.orchestrator.requests import Response
from lingbot_triton.triton.codec import encode_response
from lingbot_triton.triton.tensors import to_tensor, to_tensors

log = logging.getLogger(__name__)


class TritonResponseSink:
    """`interfaces.ResponseSink` over a response sender; sending blocks, so it has own threads."""

    def __init__(self, sender: Any, pool: ThreadPoolExecutor) -> None:
        self._sender = sender
        self._pool = pool
        self._lock = threading.Lock()
        self._finished = False

    async def send(self, response: Response, *, final: bool) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._pool, self._send, response, final)

    def _send(self, response: Response, final: bool) -> None:
        with self._lock:
            if self._finished:
                return
            self._finished = final
            flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0
            try:
                tensors = to_tensors(encode_response(response))
                if response.frames is not None:
                    tensors.append(to_tensor(protocol.FRAMES.name, response.frames))
                self._sender.send(pb_utils.InferenceResponse(tensors), flags=flags)
            except Exception:
                # The client is gone, or Triton refused the response. The request must end anyway.
                log.exception("a response could not be sent")
                if final:
                    self._sender.send(flags=flags)
                elif response.frames is not None and not self._sender.is_cancelled():
                    raise StageFailed("frames could not be sent") from None
            finally:
                if final:
                    # Triton does not unload the model while a sender is alive, and a failure's
                    # traceback may keep this sink for long.
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
