"""What listens at an address that does not answer as a Triton server's gRPC port does."""

from __future__ import annotations

import asyncio
import socket
import ssl

CONNECT_SECONDS = 5.0
READ_BYTES = 2**16


async def explain_silence(url: str, *, tls: bool) -> str:
    """One sentence on why `url` does not work as a gRPC address of a Triton server."""
    if "://" in url:
        return f"{url!r} is not host:port: leave {url.partition('://')[0]}:// away"
    host, colon, port = url.rpartition(":")
    host = host.strip("[]")
    if not colon or not port.isdecimal():
        return f"{url!r} is not host:port; Triton's gRPC port is usually 8001"
    try:
        await _converse(host, int(port), b"")
    except socket.gaierror as error:
        return f"the name {host!r} is not known: {error.strerror}"
    except ConnectionRefusedError:
        return f"nothing listens at {url}: is the server started, and is this its port?"
    except asyncio.TimeoutError:
        return f"{host} does not react within {CONNECT_SECONDS:g} s: wrong address, or a firewall?"
    except OSError as error:
        return f"{url} cannot be reached: {error.strerror or error}"
    return await _explain_listener(host, int(port), url, tls)


async def _explain_listener(host: str, port: int, url: str, tls: bool) -> str:
    if await _speaks_tls(host, port):
        if tls:
            return f"{url} speaks TLS, but not with a certificate that is trusted here"
        return f"{url} speaks TLS: add --tls, or --root-certificates"
    if tls:
        return f"{url} does not speak TLS: leave --tls and --root-certificates away"
    if b"nv_" in await _get(host, port, "/metrics"):
        return f"{url} is a Triton server's metrics port; its gRPC port is needed, usually 8001"
    http = await _get(host, port, "/v2")
    if b"triton" in http:
        return f"{url} is a Triton server's HTTP port; its gRPC port is needed, usually 8001"
    if http.startswith(b"HTTP/"):
        return f"{url} is some web server's port, not a Triton server's gRPC port"
    return f"something listens at {url}, but it does not answer as a Triton server does"


async def _get(host: str, port: int, path: str) -> bytes:
    """The response to a plain HTTP request; empty where there is none."""
    request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    try:
        return await _converse(host, port, request.encode())
    except (OSError, asyncio.TimeoutError):
        return b""


async def _speaks_tls(host: str, port: int) -> bool:
    """Whether a TLS handshake succeeds, with any certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        await _converse(host, port, b"", context)
    except (OSError, asyncio.TimeoutError):
        return False
    return True


async def _converse(
    host: str, port: int, request: bytes, context: ssl.SSLContext | None = None
) -> bytes:
    """Connect, send, and return the response; raises OSError or TimeoutError."""
    opening = asyncio.open_connection(host, port, ssl=context)
    reader, writer = await asyncio.wait_for(opening, CONNECT_SECONDS)
    try:
        if not request:
            return b""
        writer.write(request)
        response = b""
        while chunk := await asyncio.wait_for(reader.read(READ_BYTES), CONNECT_SECONDS):
            response += chunk
            if len(response) > READ_BYTES:
                break
        return response
    finally:
        writer.close()
