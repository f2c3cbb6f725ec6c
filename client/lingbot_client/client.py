"""The asyncio client."""

from __future__ import annotations

import secrets
import uuid
from types import TracebackType
from typing import Any

from lingbot_client import protocol
from lingbot_client.exchange import Exchange
from lingbot_client.picture import Picture, encode_picture
from lingbot_client.protocol import Response
from lingbot_client.session import WorldSession
from lingbot_client.transport import ServerInfo, Transport
from lingbot_client.triton import TLS, TritonTransport

DEFAULT_URL = "localhost:8001"
CLOSE_TIMEOUT = 10.0
"""Seconds a closing session waits for its summary."""


class WorldClient:
    """A connection to a server; sessions on it are independent of each other.

        async with WorldClient("localhost:8001") as client:
            async with client.open_session("street.png", "a quiet street at dusk") as session:
                await session.send(keys="w")
                chunk = await session.next_chunk()

    `tls` switches encryption on. `transport` replaces the connection to Triton altogether.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        tls: TLS | None = None,
        transport: Transport | None = None,
    ) -> None:
        self._transport = transport or TritonTransport(url, tls)

    async def __aenter__(self) -> WorldClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def open_session(
        self,
        image: Picture,
        prompt: str,
        *,
        sequence_id: int | str | None = None,
        token: str | None = None,
        close_timeout: float = CLOSE_TIMEOUT,
        **options: Any,
    ) -> WorldSession:
        """A session to enter with `async with`, which opens it, or to `open()` and `close()`.

        `image` is a path, the bytes of a file, or a Pillow image. `options` are the server's
        session options: seed, chunk_count, kv_window_frames, max_area and more. The sequence id
        and the token that guards it are random by default. Raises PictureError.
        """
        opening: dict[str, Any] = {
            protocol.IMAGE: encode_picture(image),
            protocol.PROMPT: prompt,
            protocol.OPTIONS: options or None,
        }
        return WorldSession(
            self._transport,
            uuid.uuid4().hex if sequence_id is None else sequence_id,
            secrets.token_hex(16) if token is None else token,
            opening,
            close_timeout,
        )

    async def request(
        self,
        sequence_id: int | str,
        *,
        start: bool = False,
        end: bool = False,
        **inputs: Any,
    ) -> list[Response]:
        """Send any request, on a stream of its own, and return its responses up to the final one.

        Inputs are the protocol's, as plain values or arrays; error codes come as responses.
        Raises TritonError, NoSession, Cancelled and ConnectionFailed where there is no response.
        """
        exchange = Exchange(self._transport.open_stream())
        try:
            return await exchange.call(sequence_id, start=start, end=end, inputs=inputs).collect()
        finally:
            await exchange.close()

    async def server_info(self) -> ServerInfo:
        """Ask the server about itself and its models; raises ConnectionFailed."""
        return await self._transport.describe()

    async def close(self) -> None:
        """Close the connection; sessions still open lose it."""
        await self._transport.close()
