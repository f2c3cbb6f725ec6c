"""What listens at an address, where it is no server of this service."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest
from lingbot_client.listener import explain_silence

Answerer = Callable[[bytes], bytes]


async def explained(answer: Answerer, *, tls: bool = False) -> str:
    """What is said of a listener that answers so to what it reads first."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(await reader.read(4096)))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        return await explain_silence(f"127.0.0.1:{port}", tls=tls)


def http(bodies: dict[str, str]) -> Answerer:
    def answer(request: bytes) -> bytes:
        for path, body in bodies.items():
            if request.startswith(f"GET {path} ".encode()):
                return f"HTTP/1.1 200 OK\r\n\r\n{body}".encode()
        return b"HTTP/1.1 404 Not Found\r\n\r\n"

    return answer


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (http({"/v2": '{"name":"triton"}'}), "is a Triton server's HTTP port"),
        (http({"/metrics": "nv_gpu_power 1"}), "is a Triton server's metrics port"),
        (http({}), "is some web server's port"),
        (lambda request: b"SSH-2.0\r\n", "does not answer as a Triton server does"),
        (lambda request: b"", "does not answer as a Triton server does"),
    ],
    ids=["http", "metrics", "web", "ssh", "silent"],
)
async def test_listeners_are_distinguished(answer: Answerer, sentence: str) -> None:
    assert sentence in await explained(answer)


async def test_tls_where_there_is_none_is_named() -> None:
    assert "does not speak TLS" in await explained(http({}), tls=True)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("http://localhost:8001", "leave http:// away"),
        ("localhost", "is not host:port"),
        ("localhost:grpc", "is not host:port"),
        ("127.0.0.1:1", "nothing listens at 127.0.0.1:1"),
        ("[::1]:1", "::1"),
    ],
)
async def test_addresses_that_cannot_be_right(url: str, sentence: str) -> None:
    assert sentence in await explain_silence(url, tls=False)


async def test_a_name_that_is_not_known_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    sentence = "the name 'no-such-host.invalid' is not known"
    assert sentence in await explain_silence("no-such-host.invalid:8001", tls=False)
