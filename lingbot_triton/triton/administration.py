"""What whoever started a server may ask of its orchestrator: whether it answers, and to end all.

The requests carry the server's secret as a parameter, and are refused without it.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
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


OFF = ("false", "0")
TLS = "--grpc-use-ssl"
MUTUAL_TLS = "--grpc-use-ssl-mutual"
_CERTIFICATE = "--grpc-server-cert"


class AdministrationError(RuntimeError):
    """The orchestrator did not answer, or refused; the message says what it said."""


def values_of(arguments: Sequence[str]) -> dict[str, str]:
    """A tritonserver's arguments, `--name=value` or `--name value`, by name."""
    given = {}
    for argument, following in zip(arguments, (*arguments, "")[1:], strict=True):
        name, equals, value = argument.partition("=")
        given[name] = value if equals else following
    return given


@dataclass(frozen=True)
class Door:
    """Where to ask: a gRPC address, and the certificate that tritonserver shows there, if any."""

    address: str
    certificate: Path | None = None
    mutual: bool = False
    """Whether nobody is let in without a certificate of his own, which we have not."""

    @classmethod
    def of(cls, address: str, arguments: Sequence[str]) -> Door:
        """The door of a tritonserver that was given these arguments."""
        given = values_of(arguments)
        certificate = given.get(_CERTIFICATE) if given.get(TLS) not in (*OFF, None) else None
        mutual = given.get(MUTUAL_TLS) not in (*OFF, None)
        return cls(address, Path(certificate) if certificate else None, mutual)


def probe(door: Door, secret: str, timeout: float) -> None:
    """Return if the orchestrator answers; raises AdministrationError."""
    _ask(door, [_request(PROBE, secret, uuid.uuid4().hex, starts=True)], timeout)


def drain(door: Door, secret: str, timeout: float, grace: float | None = None) -> None:
    """End every session and every sequence, for whose END Triton would wait when it stops.

    Chunks under way are given `grace` seconds to finish, None for the setting `drain_seconds`.
    Raises AdministrationError.
    """
    request = _request(DRAIN, secret, uuid.uuid4().hex, starts=True)
    if grace is not None:
        request[GRACE] = {"string_param": str(grace)}
    (answer,) = _ask(door, [request], timeout)
    left = answer["sequences"]
    _ask(door, [_request(RELEASE, secret, sequence_id) for sequence_id in left], timeout)


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


def prepare() -> None:
    """Import what asking takes: slow on a busy machine, and stopping a server is not to wait."""
    # gRPC's own care for forks is not needed, and complains when the server is started again.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    import tritonclient.grpc  # noqa: F401


def _ask(door: Door, requests: Iterable[dict[str, Any]], timeout: float) -> list[dict[str, Any]]:
    """Send requests on one stream; the `info` of each answer."""
    prepare()
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
        with _channel(door, timeout) as channel:
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


def _channel(door: Door, timeout: float) -> Any:
    """A channel that trusts the server's own certificate, whatever name and authority it has."""
    import grpc

    # The list of sequences that are left may be long.
    options: list[tuple[str, Any]] = [("grpc.max_receive_message_length", -1)]
    if door.certificate is None:
        return grpc.insecure_channel(door.address, options)
    try:
        context = ssl.create_default_context(cafile=str(door.certificate))
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.check_hostname = False
        context.set_alpn_protocols(["h2"])
        host, _, port = door.address.rpartition(":")
        with (
            socket.create_connection((host, int(port)), timeout) as plain,
            context.wrap_socket(plain) as encrypted,
        ):
            shown: Any = encrypted.getpeercert()
        names = [name for _, name in shown.get("subjectAltName", ())]
        names += [value for ((key, value),) in shown["subject"] if key == "commonName"]
        credentials = grpc.ssl_channel_credentials(door.certificate.read_bytes())
    except OSError as error:
        raise AdministrationError(f"TLS with {door.certificate}: {error}") from None
    options += [("grpc.ssl_target_name_override", name) for name in names[:1]]
    return grpc.secure_channel(door.address, credentials, options)


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
