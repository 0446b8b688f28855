"""HTTP requests and answers, apart from any server; bodies unpacked within a bound."""

import zlib
from typing import NamedTuple

MAX_BODY_BYTES = 16 * 1024 * 1024
"""Also of what a compressed body unpacks to."""


class Request(NamedTuple):
    method: str
    path: str
    content_type: str
    body: bytes


class Response(NamedTuple):
    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class RefusedError(Exception):
    """The request is answered with this status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def media_type(content_type: str) -> str:
    """Of a Content-Type header, without its parameters."""
    return content_type.partition(";")[0].strip().lower()


def unpack(body: bytes, encoding: str, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """A body as its Content-Encoding header says; RefusedError of status 400, 413 or 415.

    It takes a while for a large one. Bounded, so that a small body can't fill the memory.
    """
    name = encoding.strip().lower()
    if name in {"", "identity"}:
        return body
    if name not in {"gzip", "x-gzip", "deflate"}:
        raise RefusedError(415, f"content encoding {name!r} is not known here: gzip is")
    # gzip or zlib, by its header.
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    try:
        unpacked = unpacker.decompress(body, max_bytes)
    except zlib.error as error:
        raise RefusedError(400, "the body does not unpack") from error
    if unpacker.unconsumed_tail:
        raise RefusedError(413, f"a body may have {max_bytes} bytes, unpacked")
    if not unpacker.eof:
        raise RefusedError(400, "the compressed body is cut short")
    return unpacked
