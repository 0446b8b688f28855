"""Server: uvicorn, fitted to the proxy: bounded request heads, no access log, and its own way to stop."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headrace.schemas.errors import FatalError

_KEEP_ALIVE_S = 60
_BACKLOG = 1024
_WORDS = b'{"error":{"message":"the head of the request is too large","code":"headers_too_large"}}'
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%s"
) % (len(_WORDS), _WORDS)


class BoundedProtocol(HttpToolsProtocol):
    """The parser itself has no limit: a head that does not end would fill the memory."""

    max_header_bytes = 0
    _head_bytes = 0
    _is_in_head = True
    _is_refused = False

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self._is_in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        # A head that was whole within this piece has said so by now.
        if self._is_in_head and self._head_bytes > self.max_header_bytes:
            self._refuse()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self.max_header_bytes:
            self._refuse()
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_refused:
            super().on_message_complete()
        self._is_in_head, self._head_bytes = True, 0

    def _refuse(self) -> None:
        if not self._is_refused and not self.transport.is_closing():
            self._is_refused = True
            self.transport.write(_TOO_LARGE)
            self.transport.close()


class Server(uvicorn.Server):
    """Signals are its owner's business."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """FatalError if the address is taken or is not one of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise FatalError(f"can't listen on {host}:{port}: {error.strerror}") from error
    return listening


def server(application: Any, *, max_header_bytes: int, stop_timeout_s: float) -> Server:  # noqa: ANN401  ASGI
    config = uvicorn.Config(
        application,
        http=type("Protocol", (BoundedProtocol,), {"max_header_bytes": max_header_bytes}),
        ws="none",
        lifespan="off",
        loop="none",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(round(stop_timeout_s), 1),
        backlog=_BACKLOG,
    )
    return Server(config)


async def serve(running: Server, listening: socket.socket, stop: asyncio.Event) -> None:
    """Until told to stop; then running requests may end within the server's time."""
    serving = asyncio.ensure_future(running.serve(sockets=[listening]))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    running.should_exit = True
    await serving
