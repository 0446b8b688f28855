"""HTTP by hand, for what no client library would send."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

import orjson


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        return str(orjson.loads(self.body)["error"]["code"])


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def answer(self) -> Answer:
        """Of a known length."""
        async with asyncio.timeout(20):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            body = await self.reader.readexactly(int(headers["content-length"]))
        return Answer(int(first.split()[1]), headers, body)

    async def is_closed(self) -> bool:
        """Nothing more comes, and it ends."""
        async with asyncio.timeout(20):
            return await self.reader.read() == b""


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()


def request(target: str, body: bytes = b"", *headers: str, method: str = "POST") -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "host: proxy", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chunked(target: str, *pieces: bytes) -> bytes:
    head = f"POST {target} HTTP/1.1\r\nhost: proxy\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
