"""Runs as a process of its own: tests/proxy/fake_vllm.py's answers, each made once and then repeated.

Requests that differ in their messages alone have the same answer, byte for byte. So the upstream costs next
to nothing, and what a proxy can do is seen: with the load alone it does over 60,000 calls/s on two
cores. `python -m tests.bench.proxy_upstream` prints its URL, and ends with its standard input.
"""

import asyncio
import sys
from collections.abc import MutableMapping
from typing import Any, cast

import httptools
import orjson
import uvloop
from tests.proxy import fake_vllm

Message = MutableMapping[str, Any]
Pieces = tuple[bytes, ...]
"""Of one answer, as the socket gets them: an event of a stream is one."""

_known: dict[bytes, Pieces] = {}


async def pieces_of(path: str, body: bytes) -> Pieces:
    """The whole answer to a request."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": body}

    async def send(message: Message) -> None:
        sent.append(message)

    await fake_vllm.app({"type": "http", "path": path}, receive, send)
    head = b"HTTP/1.1 %d OK\r\n" % sent[0]["status"]
    head += b"".join(b"%b: %b\r\n" % header for header in sent[0]["headers"])
    bodies = [message["body"] for message in sent[1:]]
    if b"content-length" in dict(sent[0]["headers"]):
        return (head + b"\r\n" + b"".join(bodies),)
    chunks = [b"%x\r\n%b\r\n" % (len(each), each) for each in bodies if each]
    return head + b"transfer-encoding: chunked\r\n\r\n", *chunks, b"0\r\n\r\n"


class Connection(asyncio.Protocol):
    """One request after the other; a caller that sends two at once is none of ours."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._path = self._body = b""
        self._making: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._path = self._body = b""

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        key = _key(self._path, self._body)
        pieces = _known.get(key)
        if pieces is None:
            self._making = self._loop.create_task(self._make(key, self._path.decode(), self._body))
        else:
            self._send(pieces)

    async def _make(self, key: bytes, path: str, body: bytes) -> None:
        pieces = _known[key] = await pieces_of(path, body)
        self._send(pieces)

    def _send(self, pieces: Pieces, number: int = 0) -> None:
        """Each piece in a turn of its own, so that streams flow side by side."""
        if self._transport is None:
            return
        self._transport.write(pieces[number])
        if number + 1 < len(pieces):
            self._loop.call_soon(self._send, pieces, number + 1)


def _key(path: bytes, body: bytes) -> bytes:
    request = orjson.loads(body) if body else {}
    request.pop("messages", None)
    return path + orjson.dumps(request, option=orjson.OPT_SORT_KEYS)


async def main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Connection, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    print(f"http://{host}:{port}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


if __name__ == "__main__":
    uvloop.run(main())
