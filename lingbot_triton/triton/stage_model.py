"""One Triton model for every stage: reads requests, keeps sessions' states, answers or refuses."""

from __future__ import annotations

import contextlib
import hmac
import json
import locale
import logging
import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from lingbot_triton import metrics, protocol
from lingbot_triton.errors import BadRequest, NoSession, StageFailed, WorldError
from lingbot_triton.settings import Settings
from lingbot_triton.stage import ABOUT, CONTEXT, PROMPT_STAGE
from lingbot_triton.stages import Arrays, Parameters, SessionStage
from lingbot_triton.stages.load import load_prompt_stage, load_session_stage
from lingbot_triton.triton.configuration import instance_settings
from lingbot_triton.triton.lifeline import hold_on_to_server
from lingbot_triton.triton.prometheus import TritonMetrics
from lingbot_triton.triton.secret import server_secret
from lingbot_triton.triton.tensors import log_to_triton, to_arrays, to_tensors, to_triton_error
from lingbot_triton.world.errors import InputError

log = logging.getLogger(__name__)
STALE_SECONDS = 2 * 3600.0
"""A state that nobody touched for so long lost its session without a close."""


class WorkerModel:
    """What `prompt` and the session stages share: the seal and the answer to every request."""

    stage: str

    def initialize(self, args: dict[str, str]) -> None:
        log_to_triton(self.stage)
        hold_on_to_server()
        # Read when torch is imported, later. Threads that spin while they wait take the cores
        # from the other workers: on two cores the decoder was ten times slower for it.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        # Triton's Python reads text as ASCII otherwise, among it what torch compiles with.
        with contextlib.suppress(locale.Error):
            locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
        self._secret = server_secret()
        self.load(instance_settings(args))

    def load(self, settings: Settings) -> None:
        raise NotImplementedError

    def run(self, request: Any, arrays: Arrays, parameters: Parameters) -> Arrays:
        raise NotImplementedError

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        parameters: dict[str, Any] = {}
        try:
            parameters = json.loads(request.parameters() or "{}")
            self._check_secret(str(parameters.pop(protocol.SECRET, "")).encode())
            outputs = self.run(request, to_arrays(request.inputs()), parameters)
            return pb_utils.InferenceResponse(to_tensors(outputs))
        except WorldError as error:
            return pb_utils.InferenceResponse(error=to_triton_error(error))
        except InputError as error:
            return pb_utils.InferenceResponse(error=to_triton_error(BadRequest(str(error))))
        except Exception as error:
            log.exception("a request failed")
            work = f"{self.stage} (commit)" if parameters.get("op") == "commit" else self.stage
            failure = StageFailed(f"{work} failed: {type(error).__name__}")
            return pb_utils.InferenceResponse(error=to_triton_error(failure))

    def _check_secret(self, given: bytes) -> None:
        if hmac.compare_digest(given, self._secret):
            return
        # An orchestrator that was loaded anew, it alone, has made another one.
        self._secret = server_secret()
        if hmac.compare_digest(given, self._secret):
            return
        raise BadRequest(f"{self.stage} is internal: call the orchestrator")


class PromptModel(WorkerModel):
    """`prompt`: no state."""

    stage = PROMPT_STAGE.name

    def load(self, settings: Settings) -> None:
        self._stage = load_prompt_stage(settings)

    def run(self, request: Any, arrays: Arrays, parameters: Parameters) -> Arrays:
        if parameters.get("op") == "ping":
            return {}
        prompt = arrays[protocol.PROMPT.name].reshape(-1)[0].decode()
        return {CONTEXT.name: self._stage.encode(prompt)}


@dataclass
class _Held:
    state: Any
    touched: float


class SessionStageModel(WorkerModel):
    """A stage with one state per sequence. Triton says nothing when it drops a sequence."""

    def initialize(self, args: dict[str, str]) -> None:
        super().initialize(args)
        self._instance = args["model_instance_name"]
        self._metrics = TritonMetrics([metrics.WORKER_STATES])
        self._report()  # the process before this one may have died with another number

    def load(self, settings: Settings) -> None:
        self._stage: SessionStage = load_session_stage(self.stage, settings)
        self._held: dict[str, _Held] = {}

    def run(self, request: Any, arrays: Arrays, parameters: Parameters) -> Arrays:
        epoch = str(request.correlation_id())
        match parameters.get("op"):
            case "open":
                self._drop_stale()
                self._drop(epoch)
                state = self._stage.open(arrays, parameters)
                self._held[epoch] = _Held(state, time.monotonic())
                self._report()
                return self._about()
            case "step":
                return self._stage.step(self._state(epoch), arrays, parameters)
            case "commit":
                self._stage.commit(self._state(epoch))
                return {}
            case "close":
                self._drop(epoch)
                return {}
            case "ping":
                return {}
            case other:
                raise BadRequest(f"unknown op {other!r}; known: open, step, commit, close")

    def _about(self) -> Arrays:
        """What the stage says of itself, of those that do."""
        about = getattr(self._stage, "about", None)
        if about is None:
            return {}
        return {ABOUT.name: np.array([json.dumps(about).encode()], dtype=object)}

    def _state(self, epoch: str) -> Any:
        held = self._held.get(epoch)
        if held is None:
            raise NoSession(f"{self.stage} holds no session {epoch}")
        held.touched = time.monotonic()
        return held.state

    def _drop(self, epoch: str) -> None:
        held = self._held.pop(epoch, None)
        if held is not None:
            self._report()
            self._stage.close(held.state)

    def _report(self) -> None:
        self._metrics.set(metrics.WORKER_STATES, len(self._held), self._instance)

    def _drop_stale(self) -> None:
        oldest = time.monotonic() - STALE_SECONDS
        for epoch in [epoch for epoch, held in self._held.items() if held.touched < oldest]:
            log.warning("dropping the state of session %s: nobody closed it", epoch)
            self._drop(epoch)

    def finalize(self) -> None:
        for epoch in list(self._held):
            self._drop(epoch)
        self._metrics.shut_down()
