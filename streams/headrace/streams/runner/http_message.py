"""HTTP requests and answers, apart from any server; bodies unpacked within a bound."""

import zlib
from collections.abc import Iterator
from typing import NamedTuple

MAX_BODY_BYTES = 16 * 1024 * 1024
"""Also of what a compressed body unpacks to."""
_PIECE_BYTES = 16 * 1024


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
    parts: list[bytes] = []
    num_left = max_bytes
    try:
        for part in _unpacked(body, max_bytes):
            parts.append(part)
            num_left -= len(part)
            if num_left < 0:
                raise RefusedError(413, f"a body may have {max_bytes} bytes, unpacked")
    except zlib.error as error:
        raise RefusedError(400, "the body does not unpack") from error
    return b"".join(parts)


def _unpacked(body: bytes, max_bytes: int) -> Iterator[bytes]:
    """Member after member: gzip may have several. Each part is little over the bound at most."""
    unpacker = None
    for start in range(0, len(body), _PIECE_BYTES):
        # A member that ends gives back the rest of its piece alone: that keeps many small ones linear.
        rest = body[start : start + _PIECE_BYTES]
        while rest:
            if unpacker is None:
                # gzip or zlib, by its header.
                unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
            yield unpacker.decompress(rest, max_bytes + 1)
            rest = unpacker.unconsumed_tail
            if unpacker.eof:
                rest, unpacker = unpacker.unused_data, None
    if unpacker is not None or not body:
        raise RefusedError(400, "the compressed body is cut short")
