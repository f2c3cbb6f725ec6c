"""Administrative requests to a server: probe the orchestrator, drain it, unload the models.

Requests to the orchestrator carry the server's secret as a parameter; unloading takes the key of
the restricted protocols. Without them they are refused.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import ssl
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lingbot_triton import protocol

PROBE = "probe"
"""Parameter of a request that the orchestrator only responds to."""

DRAIN = "drain"
"""Parameter that ends every session, and refuses new ones from then on."""

GRACE = "grace_seconds"
"""Beside DRAIN: seconds that chunks under way have to finish, as a decimal string."""

ADMIN_HEADER = "lingbot-admin"
"""Header that holds the key of Triton's restricted protocols."""

UNLOAD_POLL_SECONDS = 0.05

OFF = ("false", "0")
TLS = "--grpc-use-ssl"
MUTUAL_TLS = "--grpc-use-ssl-mutual"
_CERTIFICATE = "--grpc-server-cert"


class AdministrationError(RuntimeError):
    """The orchestrator did not answer, or refused; the message says what it said."""


def values_of(arguments: Sequence[str]) -> dict[str, str]:
    """A tritonserver's arguments, `--name=value` or `--name value`, by name."""
    values = {}
    for argument, following in zip(arguments, (*arguments, "")[1:], strict=True):
        name, equals, value = argument.partition("=")
        values[name] = value if equals else following
    return values


@dataclass(frozen=True)
class AdminEndpoint:
    """A server's gRPC address, and the certificate that tritonserver presents there, if any."""

    address: str
    certificate: Path | None = None
    mutual: bool = False
    """Whether the server demands a certificate of its clients too; we have none."""

    @classmethod
    def of(cls, address: str, arguments: Sequence[str]) -> AdminEndpoint:
        """The endpoint of a tritonserver started with these arguments."""
        values = values_of(arguments)
        certificate = values.get(_CERTIFICATE) if values.get(TLS) not in (*OFF, None) else None
        mutual = values.get(MUTUAL_TLS) not in (*OFF, None)
        return cls(address, Path(certificate) if certificate else None, mutual)


def probe(endpoint: AdminEndpoint, secret: str, timeout: float) -> None:
    """Return if the orchestrator responds within `timeout` seconds; raises AdministrationError."""
    _request(endpoint, {PROBE: secret}, timeout)


def drain(endpoint: AdminEndpoint, secret: str, timeout: float, grace: float | None = None) -> None:
    """End every session; raises AdministrationError, also after `timeout` seconds.

    Chunks under way have `grace` seconds to finish; None takes the setting `drain_seconds`.
    """
    parameters = {DRAIN: secret}
    if grace is not None:
        parameters[GRACE] = str(grace)
    _request(endpoint, parameters, timeout)


class CannotUnload(AdministrationError):
    """The server does not let models be unloaded (`--model-control-mode`), or does not serve."""


def unload_models(http_address: str, admin_key: str, timeout: float) -> bool:
    """Unload every model that is loaded; whether none was left within `timeout` seconds.

    A server that stops waits for the END of every sequence of a loaded model, whether anybody
    will send it or not; unloading a model drops its sequences, even if its process has died.
    Raises CannotUnload, or AdministrationError with the last refusal of another kind.
    """
    deadline = time.monotonic() + timeout

    def ask(path: str) -> Any:
        host, _, port = http_address.rpartition(":")
        left = max(0.1, deadline - time.monotonic())
        # Closed after each request: a server that stops waits for open connections.
        with contextlib.closing(http.client.HTTPConnection(host, int(port), left)) as connection:
            connection.request("POST", f"/v2/repository/{path}", "{}", {ADMIN_HEADER: admin_key})
            response = connection.getresponse()
            body = response.read()
            if response.status == 200:
                return json.loads(body or "null")
            message = body.decode(errors="replace")
            kind = CannotUnload if "not allowed" in message else AdministrationError
            raise kind(f"{path}: {response.status} {message}")

    refusal: AdministrationError | None = None
    try:
        for model in ask("index"):
            if model.get("state") != "READY":
                continue
            try:
                ask(f"models/{model['name']}/unload")
            except CannotUnload:
                raise
            except AdministrationError as error:
                refusal = error  # the others are unloaded all the same
        while any(model.get("state") != "UNAVAILABLE" for model in ask("index")):
            if time.monotonic() > deadline:
                break
            time.sleep(UNLOAD_POLL_SECONDS)
        else:
            return True
    except ConnectionRefusedError as error:
        raise CannotUnload(str(error)) from None
    except (OSError, http.client.HTTPException) as error:
        refusal = AdministrationError(str(error))
    if refusal is not None:
        raise refusal
    return False


def prepare() -> None:
    """Import what asking takes: slow on a busy machine, and stopping a server is not to wait."""
    # gRPC's own care for forks is not needed, and complains when the server is started again.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    import tritonclient.grpc  # noqa: F401


def _request(endpoint: AdminEndpoint, parameters: dict[str, str], timeout: float) -> None:
    """Send the orchestrator one request, a sequence of its own, and wait until it is complete."""
    prepare()
    import grpc  # type: ignore[import-untyped]
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    message = service_pb2.ModelInferRequest(model_name=protocol.ORCHESTRATOR.name)
    for name, value in (parameters | {"sequence_id": uuid.uuid4().hex}).items():
        message.parameters[name].string_param = value
    for name in ("sequence_start", "sequence_end", "triton_enable_empty_final_response"):
        message.parameters[name].bool_param = True
    try:
        with _channel(endpoint, timeout) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            for response in stub.ModelStreamInfer(iter([message]), timeout=timeout):
                if response.error_message:
                    raise AdministrationError(response.error_message)
                _check(_texts(response.infer_response))
    except grpc.RpcError as error:
        raise AdministrationError(f"{error.code().name}: {error.details()}") from None


def _channel(endpoint: AdminEndpoint, timeout: float) -> Any:
    """A channel that trusts the server's own certificate, whatever name and authority it has."""
    import grpc

    options: list[tuple[str, Any]] = []
    if endpoint.certificate is None:
        return grpc.insecure_channel(endpoint.address, options)
    try:
        context = ssl.create_default_context(cafile=str(endpoint.certificate))
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.check_hostname = False
        context.set_alpn_protocols(["h2"])
        host, _, port = endpoint.address.rpartition(":")
        with (
            socket.create_connection((host, int(port)), timeout) as plain,
            context.wrap_socket(plain) as encrypted,
        ):
            peer: Any = encrypted.getpeercert()
        names = [name for _, name in peer.get("subjectAltName", ())]
        names += [value for ((key, value),) in peer["subject"] if key == "commonName"]
        credentials = grpc.ssl_channel_credentials(endpoint.certificate.read_bytes())
    except OSError as error:
        raise AdministrationError(f"TLS with {endpoint.certificate}: {error}") from None
    options += [("grpc.ssl_target_name_override", name) for name in names[:1]]
    return grpc.secure_channel(endpoint.address, credentials, options)


def _check(outputs: dict[str, bytes]) -> None:
    """Raise AdministrationError for an error response; the final response may have no outputs."""
    if message := outputs.get(protocol.MESSAGE.name):
        status = outputs[protocol.STATUS.name]
        raise AdministrationError(f"{status.decode()}: {message.decode()}")


def _texts(response: Any) -> dict[str, bytes]:
    """The BYTES [1] outputs of a response; each starts with its length in four bytes."""
    pairs = zip(response.outputs, response.raw_output_contents, strict=False)
    return {output.name: data[4:] for output, data in pairs if output.datatype == "BYTES"}
