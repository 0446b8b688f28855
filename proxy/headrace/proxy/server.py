"""Server: uvicorn, fitted to the proxy: bounded request heads, no access log, and its own way to stop."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headrace.schemas.errors import FatalError

ABORT = "headrace.abort"
"""In a scope's extensions: its `abort` ends the connection at once, whatever waits to be sent."""
_KEEP_ALIVE_S = 60
_BACKLOG = 1024


def _refusal(status: bytes, message: bytes, code: bytes) -> bytes:
    body = b'{"error":{"message":"%s","type":"invalid_request_error","param":null,"code":"%s"}}' % (
        message,
        code,
    )
    head = (
        b"HTTP/1.1 %s\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s"
    )
    return head % (status, len(body), body)


_TOO_LARGE = _refusal(
    b"431 Request Header Fields Too Large", b"the head of the request is too large", b"headers_too_large"
)
_TOO_SLOW = _refusal(b"408 Request Timeout", b"the head of the request did not come", b"request_timeout")


class BoundedProtocol(HttpToolsProtocol):
    """The parser itself has no limit: a head, or trailers, without end would fill the memory."""

    max_header_bytes = 0
    head_timeout_s = 0.0
    _is_in_head = True
    _head_bytes = 0
    _trailer_bytes: int | None = None
    """Since a chunk's header, as long as no byte of the chunk has come: the last one has none."""
    _is_refused = False
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        self._begin_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self._is_in_head:
            self._head_bytes += len(data)
        elif self._trailer_bytes is not None:
            self._trailer_bytes += len(data)
        super().data_received(data)
        # A head that was whole within this piece has said so by now.
        if (self._is_in_head and self._head_bytes > self.max_header_bytes) or (
            self._trailer_bytes or 0
        ) > self.max_header_bytes:
            self._refuse(_TOO_LARGE)
        elif self._is_in_head and self._head_bytes and self._timer is None:
            self._begin_timer()

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers have no meaning here, and the list is the application's by then.
        if self._is_in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._end_timer()
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self.max_header_bytes:
            self._refuse(_TOO_LARGE)
        else:
            # A new one each time: the rest of the scope may be shared between requests.
            self.scope["extensions"] = {ABORT: {"abort": self.transport.abort}}
            super().on_headers_complete()

    def on_chunk_header(self) -> None:
        self._trailer_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._trailer_bytes = None
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_refused:
            super().on_message_complete()
        self._is_in_head, self._head_bytes, self._trailer_bytes = True, 0, None

    def _refuse(self, answer: bytes) -> None:
        if not self._is_refused and not self.transport.is_closing():
            self._is_refused = True
            is_answering = self.cycle is not None and self.cycle.response_started
            if not is_answering or self.cycle.response_complete:
                self.transport.write(answer)
            self.transport.close()

    def _begin_timer(self) -> None:
        self._timer = self.loop.call_later(self.head_timeout_s, self._refuse, _TOO_SLOW)

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Server(uvicorn.Server):
    """Signals are its owner's business."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """FatalError if the address is taken or is not one of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named, asyncio switches Nagle's algorithm off, which costs up to 40 ms an answer.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise FatalError(f"can't listen on {host}:{port}: {error.strerror}") from error
    return listening


def server(
    application: Any,  # noqa: ANN401  ASGI
    *,
    max_header_bytes: int,
    stop_timeout_s: float,
    head_timeout_s: float,
) -> Server:
    config = uvicorn.Config(
        application,
        http=type(
            "Protocol",
            (BoundedProtocol,),
            {"max_header_bytes": max_header_bytes, "head_timeout_s": head_timeout_s},
        ),
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


async def serve(
    running: Server,
    listening: socket.socket,
    stop: asyncio.Event,
    *,
    cut: Callable[[], object] = lambda: None,
    cut_after_s: float = 0.0,
) -> None:
    """Until told to stop; then running requests may end within the server's time.

    `cut` is called before that is over: the server knows nothing better than to cancel.
    """
    serving = asyncio.ensure_future(running.serve(sockets=[listening]))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    running.should_exit = True
    cutting = asyncio.get_running_loop().call_later(cut_after_s, cut)
    try:
        await serving
    finally:
        cutting.cancel()
