"""Bodies unpacked within a bound."""

import gzip
import random
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
        ("gzip", gzip.compress(b"wo") + gzip.compress(b"") + gzip.compress(b"rds")),
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
        pytest.param("gzip", gzip.compress(b"wor") + gzip.compress(b"ds!"), 413, id="too large together"),
        pytest.param("gzip", gzip.compress(b"wo") + gzip.compress(b"rds")[:-3], 400, id="the last cut short"),
        pytest.param("gzip", gzip.compress(b"words") + b"more", 400, id="something after it"),
        pytest.param("gzip", b"", 400, id="nothing"),
        pytest.param("gzip", gzip.compress(bytes(10**7)), 413, id="a bomb"),
    ],
)
def test_bodies_that_are_refused(encoding: str, body: bytes, status: int) -> None:
    with pytest.raises(RefusedError) as refused:
        unpack(body, encoding, 5)
    assert refused.value.status == status


def test_large_bodies_and_many_members_are_unpacked_piece_by_piece() -> None:
    words = random.Random(1).randbytes(200_000)
    assert unpack(gzip.compress(words), "gzip") == words
    members = b"".join(gzip.compress(words[place : place + 50]) for place in range(0, len(words), 50))
    assert unpack(members, "gzip", len(words)) == words
