"""One Triton model for every stage: reads requests, keeps sessions' states, responds."""

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
from lingbot_triton.stage import ABOUT, CONTEXT, PROMPT_STAGE, find_stage
from lingbot_triton.stages import Arrays, Parameters, SessionStage
from lingbot_triton.stages.load import load_stage
from lingbot_triton.triton.configuration import instance_settings
from lingbot_triton.triton.lifeline import hold_on_to_server
from lingbot_triton.triton.prometheus import TritonMetrics
from lingbot_triton.triton.secret import server_secret
from lingbot_triton.triton.tensors import log_to_triton, to_arrays, to_tensors, to_triton_error
from lingbot_triton.world.errors import InputError

log = logging.getLogger(__name__)
STALE_SECONDS = 2 * 3600.0
"""A state that was not used for so long lost its session without a close."""


class WorkerModel:
    """What `prompt` and the session stages share: the secret and one response to every request."""

    stage: str
    """Name of the stage."""

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
        return [self._respond(request) for request in requests]

    def _respond(self, request: Any) -> Any:
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

    def _check_secret(self, secret: bytes) -> None:
        if hmac.compare_digest(secret, self._secret):
            return
        # An orchestrator that was loaded anew, alone, has made another one.
        self._secret = server_secret()
        if hmac.compare_digest(secret, self._secret):
            return
        raise BadRequest(f"{self.stage} is internal: call the orchestrator")


class PromptModel(WorkerModel):
    """`prompt`: no state."""

    stage = PROMPT_STAGE.name

    def load(self, settings: Settings) -> None:
        self._stage = load_stage(PROMPT_STAGE, settings)

    def run(self, request: Any, arrays: Arrays, parameters: Parameters) -> Arrays:
        if parameters.get("op") == "ping":
            return {}
        prompt = arrays[protocol.PROMPT.name].reshape(-1)[0].decode()
        return {CONTEXT.name: self._stage.encode(prompt)}


@dataclass
class _SessionState:
    state: Any
    used_at: float


class SessionStageModel(WorkerModel):
    """A stage with one state per sequence. Triton says nothing when it drops a sequence."""

    def initialize(self, args: dict[str, str]) -> None:
        super().initialize(args)
        self._instance = args["model_instance_name"]
        self._metrics = TritonMetrics([metrics.WORKER_STATES])
        self._report()  # the process before this one may have died with another number

    def load(self, settings: Settings) -> None:
        self._record = find_stage(self.stage)
        self._stage: SessionStage = load_stage(self._record, settings)
        self._states: dict[str, _SessionState] = {}

    def run(self, request: Any, arrays: Arrays, parameters: Parameters) -> Arrays:
        correlation_id = str(request.correlation_id())
        match operation := str(parameters.get("op")):
            case "open":
                self._drop_stale()
                self._drop(correlation_id)
                state = self._stage.open(arrays, parameters)
                self._states[correlation_id] = _SessionState(state, time.monotonic())
                self._report()
                return self._report_of_stage()
            case "commit":
                self._stage.commit(self._state(correlation_id))
                return {}
            case "close":
                self._drop(correlation_id)
                return {}
            case "ping":
                return {}
        known = [known.name for known in self._record.operations]
        if operation not in known:
            raise BadRequest(f"unknown op {operation!r}; known: {', '.join(known)}")
        # Every other operation is the stage's method of the same name.
        work = getattr(self._stage, operation)
        outputs: Arrays = work(self._state(correlation_id), arrays, parameters)
        return outputs

    def _report_of_stage(self) -> Arrays:
        """What the stage reports of itself, where it reports anything."""
        report = getattr(self._stage, "about", None)
        if report is None:
            return {}
        return {ABOUT.name: np.array([json.dumps(report).encode()], dtype=object)}

    def _state(self, correlation_id: str) -> Any:
        state = self._states.get(correlation_id)
        if state is None:
            raise NoSession(f"{self.stage} holds no session {correlation_id}")
        state.used_at = time.monotonic()
        return state.state

    def _drop(self, correlation_id: str) -> None:
        state = self._states.pop(correlation_id, None)
        if state is not None:
            self._report()
            self._stage.close(state.state)

    def _report(self) -> None:
        self._metrics.set(metrics.WORKER_STATES, len(self._states), self._instance)

    def _drop_stale(self) -> None:
        oldest = time.monotonic() - STALE_SECONDS
        for correlation_id in [
            correlation_id
            for correlation_id, state in self._states.items()
            if state.used_at < oldest
        ]:
            log.warning("dropping the state of session %s: it was never closed", correlation_id)
            self._drop(correlation_id)

    def finalize(self) -> None:
        for correlation_id in list(self._states):
            self._drop(correlation_id)
        self._metrics.shut_down()
