"""The same client for code without asyncio: it runs in a thread with a loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

from numpy.typing import ArrayLike

from lingbot_client.client import DEFAULT_URL, WorldClient
from lingbot_client.errors import SessionOver
from lingbot_client.frames import Chunk, FramePart
from lingbot_client.picture import Picture
from lingbot_client.protocol import Response
from lingbot_client.session import WorldSession
from lingbot_client.transport import ServerInfo, Transport
from lingbot_client.triton import TLS

T = TypeVar("T")


class _Portal:
    """An event loop in a thread, and the way into it."""

    def __init__(self) -> None:
        started = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(started)), name="lingbot-client", daemon=True
        )
        self._thread.start()
        started.wait()

    async def _serve(self, started: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        started.set()
        await self._stop.wait()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and wait for it; an interrupted wait cancels it."""
        if self.closed:
            coroutine.close()
            raise RuntimeError("the client is closed")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()

    @property
    def closed(self) -> bool:
        return not self._thread.is_alive()

    def close(self) -> None:
        """Stop the loop and join its thread."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


class SyncWorldSession:
    """`WorldSession` without asyncio; its documentation applies here."""

    def __init__(self, portal: _Portal, session: WorldSession) -> None:
        self._portal = portal
        self._session = session

    def __enter__(self) -> SyncWorldSession:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[FramePart]:
        try:
            while True:
                yield self.next_part()
        except SessionOver:
            return

    @property
    def id(self) -> int | str:
        return self._session.id

    @property
    def token(self) -> str:
        return self._session.token

    @property
    def ready(self) -> dict[str, Any]:
        """What the server said when it opened the session."""
        return self._session.ready

    @property
    def summary(self) -> dict[str, Any] | None:
        """What the server said when it closed the session; None if it did not."""
        return self._session.summary

    def open(self) -> dict[str, Any]:
        """Open the session and return `ready`."""
        return self._portal.run(self._session.open())

    def send(self, keys: str | Sequence[str] = "", *, poses: ArrayLike | None = None) -> int:
        """Send the next control and return its index."""
        return self._portal.run(self._session.send(keys, poses=poses))

    def finish(self) -> None:
        """Send no more controls: iteration ends after the last chunk on its way."""
        self._portal.run(self._finish())

    def next_part(self) -> FramePart:
        """Wait for the next part of a chunk; raises SessionOver when none can follow."""
        return self._portal.run(self._session.next_part())

    def next_chunk(self) -> Chunk:
        """Wait for the next whole chunk; raises SessionOver when none can follow."""
        return self._portal.run(self._session.next_chunk())

    def chunks(self) -> Iterator[Chunk]:
        """Iterate over whole chunks, until the session is finished or closed."""
        try:
            while True:
                yield self.next_chunk()
        except SessionOver:
            return

    def request(self, *, start: bool = False, end: bool = False, **inputs: Any) -> list[Response]:
        """Send any request on this session and return its responses, error codes included."""
        return self._portal.run(self._session.request(start=start, end=end, **inputs))

    def close(self) -> None:
        """End the session and wait for its summary."""
        self._portal.run(self._session.close())

    async def _finish(self) -> None:
        self._session.finish()


class SyncWorldClient:
    """`WorldClient` without asyncio.

    with SyncWorldClient("localhost:8001") as client:
        with client.open_session("street.png", "a quiet street at dusk") as session:
            session.send(keys="w")
            chunk = session.next_chunk()
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        tls: TLS | None = None,
        transport: Transport | None = None,
    ) -> None:
        self._client = WorldClient(url, tls=tls, transport=transport)
        self._portal = _Portal()

    def __enter__(self) -> SyncWorldClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def open_session(self, image: Picture, prompt: str, **options: Any) -> SyncWorldSession:
        """A session to enter with `with`; arguments as for `WorldClient.open_session`."""
        return SyncWorldSession(self._portal, self._client.open_session(image, prompt, **options))

    def request(
        self, sequence_id: int | str, *, start: bool = False, end: bool = False, **inputs: Any
    ) -> list[Response]:
        """Send any request, on a stream of its own, and return its responses."""
        return self._portal.run(self._client.request(sequence_id, start=start, end=end, **inputs))

    def server_info(self) -> ServerInfo:
        """Ask the server about itself and its models."""
        return self._portal.run(self._client.server_info())

    def close(self) -> None:
        """Close the connection and join the thread behind it."""
        if self._portal.closed:
            return
        try:
            self._portal.run(self._client.close())
        finally:
            self._portal.close()
