"""What the bench's upstream repeats is what the fake vLLM says, in the pieces in which it says it."""

import asyncio
from typing import Any

import orjson
import pytest
from tests.bench.proxy_upstream import pieces_of

PATH = "/v1/chat/completions"
REQUEST: dict[str, Any] = {"model": "fake", "messages": [], "max_tokens": 4, "logprobs": True}


def ask(path: str, **members: object) -> tuple[bytes, ...]:
    return asyncio.run(pieces_of(path, orjson.dumps(REQUEST | members)))


def test_an_answer_in_one_piece_has_ids_and_logprobs() -> None:
    (piece,) = ask(PATH, return_token_ids=True)
    head, _, body = piece.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"content-length: %d" % len(body) in head
    answer = orjson.loads(body)
    assert len(answer["choices"][0]["token_ids"]) == 4
    assert len(answer["choices"][0]["logprobs"]["content"]) == 4
    assert answer["prompt_token_ids"]


def test_a_stream_is_a_piece_an_event() -> None:
    head, *chunks = ask(PATH, stream=True)
    assert head.endswith(b"transfer-encoding: chunked\r\n\r\n")
    assert chunks[-1] == b"0\r\n\r\n"
    assert [chunk.count(b"data: ") for chunk in chunks[:-1]] == [1] * (1 + 4 + 1)
    assert b"data: [DONE]" in chunks[-2]
    for chunk in chunks[:-1]:
        size, _, rest = chunk.partition(b"\r\n")
        assert int(size, 16) == len(rest) - 2


@pytest.mark.parametrize("path", ["/elsewhere", "/v1"])
def test_errors_come_through(path: str) -> None:
    (piece,) = ask(path)
    assert piece.startswith(b"HTTP/1.1 404 ")
