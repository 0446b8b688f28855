"""The HTTP server: bounds on what comes in, in bytes and in time, and what it makes of odd requests."""

import asyncio

import orjson
import pytest
from tests.proxy.connection import Connection, chunked, connected, request
from tests.proxy.fake_vllm import said
from tests.proxy.harness import Proxy, a_proxy, upstream_url

from headrace.proxy.server import listen
from headrace.schemas.errors import FatalError

__all__ = ["upstream_url"]

CHAT = orjson.dumps({"model": "fake", "messages": [], "max_tokens": 3})


def target_of(proxy: Proxy) -> str:
    return f"{proxy.open()}/v1/chat/completions"


async def goes_on(proxy: Proxy) -> None:
    """It serves others as before."""
    assert (await proxy.chat(proxy.open())).status_code == 200


async def pour(connection: Connection, piece: bytes, number: int) -> bool:
    """As much of it as is taken; whether all was."""
    try:
        for _ in range(number):
            await connection.send(piece)
    except ConnectionError:
        return False
    return True


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"GET /healthz HTTP/1.1\r\nx: " + b"a" * 40_000, id="a header without end"),
        pytest.param(b"GET /" + b"a" * 40_000, id="a path without end"),
        pytest.param(b"GET /healthz HTTP/1.1\r\n" + b"a: b\r\n" * 7000, id="headers without end"),
        pytest.param(b"GET /healthz HTTP/1.1\r\nx: " + b"a" * 40_000 + b"\r\n\r\n", id="whole, and large"),
        pytest.param(request("/healthz", b"", "x: " + "a" * 40_000), id="whole, in one piece"),
    ],
)
async def test_a_head_is_bounded(upstream_url: str, head: bytes) -> None:
    async with a_proxy(upstream_url) as proxy:
        async with connected(proxy.url) as connection:
            await connection.send(head)
            answer = await connection.answer()
            assert (answer.status, answer.code) == (431, "headers_too_large")
            assert await connection.is_closed()
        await goes_on(proxy)


async def test_a_head_in_pieces_is_bounded_too(upstream_url: str) -> None:
    async with a_proxy(upstream_url, max_header_bytes=2048) as proxy, connected(proxy.url) as connection:
        await connection.send(b"GET /healthz HTTP/1.1\r\n")
        await pour(connection, b"a: " + b"b" * 500 + b"\r\n", 5)
        assert (await connection.answer()).status == 431


async def test_a_head_that_does_not_come(upstream_url: str) -> None:
    async with a_proxy(upstream_url, head_timeout_s=0.05) as proxy:
        for sent in (b"", b"GET /healthz HT"):
            async with connected(proxy.url) as connection:
                await connection.send(sent)
                answer = await connection.answer()
                assert (answer.status, answer.code) == (408, "request_timeout")
                assert await connection.is_closed()
        # An idle connection between two requests is another matter.
        async with connected(proxy.url) as connection:
            await connection.send(request("/healthz", method="GET"))
            assert (await connection.answer()).status == 200
            await asyncio.sleep(0.1)
            await connection.send(request("/healthz", method="GET"))
            assert (await connection.answer()).status == 200
            await connection.send(b"GET /heal")
            assert (await connection.answer()).status == 408


async def test_a_body_that_does_not_come(upstream_url: str) -> None:
    async with a_proxy(upstream_url, body_timeout_s=0.05) as proxy:
        target = target_of(proxy)
        async with connected(proxy.url) as connection:
            await connection.send(request(target, CHAT)[:-5])
            answer = await connection.answer()
            assert (answer.status, answer.code) == (408, "request_timeout")
        assert proxy.spans() == []


@pytest.mark.parametrize("is_announced", [True, False], ids=["by its length", "by its bytes"])
async def test_a_body_is_bounded(upstream_url: str, is_announced: bool) -> None:  # noqa: FBT001
    async with a_proxy(upstream_url, max_body_bytes=2048) as proxy:
        target, body = target_of(proxy), b'{"x": "' + b"a" * 4000 + b'"}'
        async with connected(proxy.url) as connection:
            await connection.send(request(target, body) if is_announced else chunked(target, body))
            answer = await connection.answer()
            assert (answer.status, answer.code) == (413, "request_too_large")
        await goes_on(proxy)


async def test_trailers_are_bounded_and_mean_nothing(upstream_url: str) -> None:
    async with a_proxy(upstream_url, max_header_bytes=2048) as proxy:
        target = target_of(proxy)
        whole = chunked(target, CHAT)
        async with connected(proxy.url) as connection:
            await connection.send(whole[:-2] + b"x-headrace-agent: other\r\n\r\n")
            assert (await connection.answer()).status == 200
            assert [span.generation.agent for span in proxy.spans() if span.generation] == [""]
        for trailers in (b"a: b\r\n" * 200, b"a: " + b"b" * 1200):
            async with connected(proxy.url) as connection:
                await connection.send(whole[:-2])
                assert not await pour(connection, trailers, 10_000)
        assert len(proxy.spans()) == 1
        await goes_on(proxy)


async def test_chunked_bodies_and_connections_that_are_kept(upstream_url: str) -> None:
    async with a_proxy(upstream_url) as proxy:
        target = target_of(proxy)
        async with connected(proxy.url) as connection:
            for pieces in ([CHAT], [CHAT[:1], CHAT[1:7], CHAT[7:]], [bytes([each]) for each in CHAT]):
                await connection.send(chunked(target, *pieces))
                answer = await connection.answer()
                assert answer.status == 200
            # Two at once, answered in turn.
            await connection.send(request(target, CHAT) + request("/healthz", method="GET"))
            told = orjson.loads((await connection.answer()).body)
            assert told["choices"][0]["message"]["content"] == said(told["id"]).text
            assert orjson.loads((await connection.answer()).body) == {"status": "ok"}
        assert [span.sequence_id for span in proxy.spans()] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "not_found"),
        ("POST", "/v1/chat/completions", 404, "not_found"),
        ("POST", "/a/x/v1/embeddings", 404, "not_found"),
        ("POST", "/a//v1/chat/completions", 404, "not_found"),
        ("GET", "/a/x/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/attempts", 405, "method_not_allowed"),
        ("POST", "/a/x/v1/chat/completions", 404, "attempt_unknown"),
    ],
)
async def test_what_is_not_there(upstream_url: str, method: str, path: str, status: int, code: str) -> None:
    """In the shape of OpenAI's errors."""
    async with a_proxy(upstream_url) as proxy:
        answer = await proxy.client.request(method, path)
        assert answer.status_code == status
        error = answer.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert (error["code"], error["type"]) == (code, "invalid_request_error")
        assert ("allow" in answer.headers) == (status == 405)


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"CONNECT evil.example:443 HTTP/1.1\r\nhost: evil.example\r\n\r\n", id="CONNECT"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", id="TLS"),
        pytest.param(
            b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\nabc",
            id="two lengths",
        ),
        pytest.param(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: -3\r\n\r\nabc", id="negative length"),
    ],
)
async def test_what_is_no_request_for_us(upstream_url: str, sent: bytes) -> None:
    async with a_proxy(upstream_url) as proxy:
        async with connected(proxy.url) as connection:
            await connection.send(sent)
            assert (await connection.answer()).status == 400
            assert await connection.is_closed()
        await goes_on(proxy)


def test_a_port_that_is_taken() -> None:
    with listen("127.0.0.1", 0) as first:
        first.listen()
        port = first.getsockname()[1]
        with pytest.raises(FatalError, match=f"can't listen on 127.0.0.1:{port}"):
            listen("127.0.0.1", port)


def test_an_address_of_another_machine() -> None:
    with pytest.raises(FatalError, match=r"can't listen on 192\.0\.2\.1"):
        listen("192.0.2.1", 0)
