"""Bodies unpacked within a bound."""

import gzip
import zlib

import pytest

from headrace.streams.runner.http_message import RefusedError, media_type, unpack


@pytest.mark.parametrize(
    ("header", "expected"),
    [("", ""), ("application/json", "application/json"), (" Text/Plain ; charset=utf-8", "text/plain")],
)
def test_media_type(header: str, expected: str) -> None:
    assert media_type(header) == expected


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("", b"words"),
        ("identity", b"words"),
        ("gzip", gzip.compress(b"words")),
        ("X-GZIP ", gzip.compress(b"words")),
        ("deflate", zlib.compress(b"words")),
    ],
)
def test_bodies_are_unpacked(encoding: str, body: bytes) -> None:
    assert unpack(body, encoding, 5) == b"words"


@pytest.mark.parametrize(
    ("encoding", "body", "status"),
    [
        pytest.param("br", b"words", 415, id="unknown"),
        pytest.param("gzip", b"words", 400, id="not packed"),
        pytest.param("gzip", gzip.compress(b"words")[:-3], 400, id="cut short"),
        pytest.param("gzip", gzip.compress(b"words!"), 413, id="too large"),
    ],
)
def test_bodies_that_are_refused(encoding: str, body: bytes, status: int) -> None:
    with pytest.raises(RefusedError) as refused:
        unpack(body, encoding, 5)
    assert refused.value.status == status
