"""A small HTTP/1.1 server on loopback, in an event loop: one handler, bounded bodies, gzip, keep-alive."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Self

import h11
import structlog

from headrace.streams.runner.http_message import (
    MAX_BODY_BYTES,
    RefusedError,
    Request,
    Response,
    media_type,
    unpack,
)

LOOPBACK = "127.0.0.1"
_READ_BYTES = 64 * 1024
_IDLE_S = 120.0
_MAX_CONNECTIONS = 1024

log = structlog.get_logger(__name__)


Handler = Callable[[Request], Awaitable[Response]]


class HttpServer:
    """An async context manager. Connections past the limit wait to be accepted."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._places = asyncio.Semaphore(_MAX_CONNECTIONS)
        self._connections: set[asyncio.Task[None]] = set()
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, LOOPBACK, 0, backlog=256)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None  # noqa: S101
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        self._connections.add(task)
        try:
            async with self._places:
                with suppress(ConnectionError, TimeoutError):
                    await self._serve(reader, writer)
        except asyncio.CancelledError:
            # Only we cancel it, at the end: to the stream's own callback that would be an error.
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER)
        while True:
            try:
                response = await self._answer(connection, reader, writer)
            except RefusedError as error:
                response = Response(error.status, "text/plain; charset=utf-8", f"{error}\n".encode())
            except h11.RemoteProtocolError as error:
                response = Response(error.error_status_hint, "text/plain", b"not HTTP\n")
            if response is None:
                return
            await _send(connection, writer, response)
            if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                return
            connection.start_next_cycle()

    async def _answer(
        self, connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Response | None:
        """The response to the next request; None when the client has gone."""
        head: h11.Request | None = None
        body = bytearray()
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                if connection.they_are_waiting_for_100_continue:
                    writer.write(
                        connection.send(h11.InformationalResponse(status_code=100, headers=[])) or b""
                    )
                async with asyncio.timeout(_IDLE_S):
                    connection.receive_data(await reader.read(_READ_BYTES))
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > MAX_BODY_BYTES:
                    raise RefusedError(413, f"a body may have {MAX_BODY_BYTES} bytes")
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                return await self._handle(head, bytes(body))
            else:
                return None

    async def _handle(self, head: h11.Request, body: bytes) -> Response:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in head.headers}
        encoding = headers.get("content-encoding", "")
        if encoding:
            body = await asyncio.to_thread(unpack, body, encoding)
        content_type = media_type(headers.get("content-type", ""))
        path = head.target.decode("latin-1").partition("?")[0]
        try:
            return await self._handler(Request(head.method.decode("latin-1"), path, content_type, body))
        except RefusedError:
            raise
        except Exception as error:
            # As a type alone: messages may quote what agents sent.
            log.error("request failed", error=type(error).__name__)  # noqa: TRY400
            raise RefusedError(500, "an error of the runner's") from error


async def _send(connection: h11.Connection, writer: asyncio.StreamWriter, response: Response) -> None:
    headers = [
        ("content-type", response.content_type),
        ("content-length", str(len(response.body))),
        *response.headers,
    ]
    if connection.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
        return
    parts = [
        connection.send(h11.Response(status_code=response.status, headers=headers)),
        connection.send(h11.Data(data=response.body)),
        connection.send(h11.EndOfMessage()),
    ]
    writer.write(b"".join(part or b"" for part in parts))
    await writer.drain()
