"""What whoever started a server may ask of its orchestrator: whether it answers, and to end all.

The requests carry the server's secret as a parameter, and are refused without it.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from lingbot_triton import protocol

PROBE = "probe"
"""Parameter that asks for an answer, and for nothing else."""

DRAIN = "drain"
"""Parameter that ends every session, and refuses new ones from then on."""

GRACE = "grace_seconds"
"""Beside DRAIN: the time that chunks under way are given to finish, as a number in text."""

RELEASE = "release"
"""Parameter of an END that only gives a sequence's slot back to Triton."""


class AdministrationError(RuntimeError):
    """The orchestrator did not answer, or refused; the message says what it said."""


def probe(address: str, secret: str, timeout: float) -> None:
    """Return if the orchestrator at a gRPC address answers; raises AdministrationError."""
    _ask(address, [_request(PROBE, secret, uuid.uuid4().hex, starts=True)], timeout)


def drain(address: str, secret: str, timeout: float, grace: float | None = None) -> None:
    """End every session and every sequence, for whose END Triton would wait when it stops.

    Chunks under way are given `grace` seconds to finish, None for the setting `drain_seconds`.
    Raises AdministrationError.
    """
    request = _request(DRAIN, secret, uuid.uuid4().hex, starts=True)
    if grace is not None:
        request[GRACE] = {"string_param": str(grace)}
    (answer,) = _ask(address, [request], timeout)
    left = answer["sequences"]
    _ask(address, [_request(RELEASE, secret, sequence_id) for sequence_id in left], timeout)


def _request(
    operation: str, secret: str, sequence_id: int | str, *, starts: bool = False
) -> dict[str, Any]:
    kind = "int64_param" if isinstance(sequence_id, int) else "string_param"
    return {
        operation: {"string_param": secret},
        "sequence_id": {kind: sequence_id},
        "sequence_start": {"bool_param": starts},
        "sequence_end": {"bool_param": True},
        "triton_enable_empty_final_response": {"bool_param": True},
    }


def _ask(address: str, requests: Iterable[dict[str, Any]], timeout: float) -> list[dict[str, Any]]:
    """Send requests on one stream; the `info` of each answer."""
    # gRPC's own care for forks is not needed, and complains when the server is started again.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    import grpc  # type: ignore[import-untyped]
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    def messages() -> Iterator[Any]:
        for parameters in requests:
            message = service_pb2.ModelInferRequest(model_name=protocol.ORCHESTRATOR.name)
            for name, value in parameters.items():
                message.parameters[name].CopyFrom(service_pb2.InferParameter(**value))
            yield message

    answers = []
    try:
        with grpc.insecure_channel(address) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            for response in stub.ModelStreamInfer(messages(), timeout=timeout):
                if response.error_message:
                    raise AdministrationError(response.error_message)
                outputs = _texts(response.infer_response)
                if outputs:
                    answers.append(_info(outputs))
    except grpc.RpcError as error:
        raise AdministrationError(f"{error.code().name}: {error.details()}") from None
    return answers


def _info(outputs: dict[str, bytes]) -> dict[str, Any]:
    status, message = outputs[protocol.STATUS.name], outputs[protocol.MESSAGE.name]
    if message:
        raise AdministrationError(f"{status.decode()}: {message.decode()}")
    told: dict[str, Any] = json.loads(outputs[protocol.INFO.name])
    return told


def _texts(response: Any) -> dict[str, bytes]:
    """The BYTES [1] outputs of a response; each starts with its length in four bytes."""
    pairs = zip(response.outputs, response.raw_output_contents, strict=False)
    return {output.name: data[4:] for output, data in pairs if output.datatype == "BYTES"}
