"""Answers that no API has, clients that don't read, requests that claim too much or want another upstream."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from tests.proxy.connection import connected, request
from tests.proxy.fake_vllm import said
from tests.proxy.harness import Proxy, a_proxy, until, upstream_url

__all__ = ["upstream_url"]

OK = b"HTTP/1.1 200 OK"
ELSEWHERE = b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:9/"

APIS: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": []},
    "completions": {"prompt": "x"},
    "messages": {"messages": [{"role": "user", "content": "x"}]},
    "responses": {"input": "x"},
}
ODD: dict[str, Any] = {
    "choices are no list": {"choices": "x"},
    "a choice is null": {"choices": [None]},
    "a delta is no object": {"choices": [{"index": 0, "delta": "x", "message": "x"}]},
    "logprobs without a number": {"choices": [{"index": 0, "delta": {}, "logprobs": {"content": [{}]}}]},
    "tool calls are no list": {
        "choices": [{"index": 0, "delta": {"tool_calls": 1}, "message": {"tool_calls": 1}}]
    },
    "usage is no object": {"choices": [], "usage": 3},
    "ids are words": {"choices": [{"index": 0, "delta": {"content": "x"}, "token_ids": ["a"]}]},
}


@asynccontextmanager
async def answering(body: bytes, heard: list[bytes] | None = None, status: bytes = OK) -> AsyncIterator[str]:
    """An upstream that gives this to whatever is asked, and tells the heads of what it heard."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (heard if heard is not None else []).append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"%b\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body)
        # The request's body may be unread: the peer would see a reset before the answer.
        with contextlib.suppress(ConnectionError):
            await writer.drain()
            await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def ask(proxy: Proxy, path: str, api: str, **members: Any) -> tuple[int, str]:
    body = {"model": "fake", "max_tokens": 4, **APIS[api], **members}
    answer = await proxy.client.post(f"{path}/v1/{api}", json=body)
    return answer.status_code, answer.text


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
async def test_an_answer_that_no_api_has(api: str, stream: bool, odd: Any) -> None:  # noqa: FBT001
    """It is one span that is never trained on, or void, and the client is not left waiting."""
    body = orjson.dumps({"id": "x", "model": "odd", **odd})
    if stream:
        body = b"data: " + body + b"\n\ndata: [DONE]\n\n"
    async with answering(body) as url, a_proxy(url) as proxy:
        path = proxy.open()
        status, text = await ask(proxy, path, api, stream=stream)
        assert status in {200, 502} or (status == 500 and not stream), text
        (span,) = proxy.spans()
        assert span.generation is not None
        assert span.generation.why_untrainable() is not None
        assert await proxy.close(path) == {"last_sequence_id": 1, "failure": None}


async def test_a_client_that_does_not_read_holds_up_nothing() -> None:
    """Its attempt can end, and its place is free again."""
    chunk = {"id": "x", "choices": [{"index": 0, "delta": {"content": "x" * 10_000}}]}
    long = b"data: " + orjson.dumps(chunk) + b"\n\n"
    body = {"model": "fake", "messages": [], "stream": True}
    async with answering(long * 1500) as url, a_proxy(url, send_timeout_s=0.2, max_calls=1) as proxy:
        path = proxy.open()
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", int(proxy.url.rpartition(":")[2])))
            client.sendall(request(f"{path}/v1/chat/completions", orjson.dumps(body)))
            attempt = proxy.attempts.get(path[3:])
            await until(lambda: attempt.num_calls == 1)
            assert (await proxy.chat(path)).status_code == 429
            assert await proxy.close(path) == {"last_sequence_id": 1, "failure": None}
            other = proxy.open()
            async with asyncio.timeout(20):
                while (await proxy.chat(other)).status_code == 429:  # noqa: ASYNC110  the server decides
                    await asyncio.sleep(0.01)


async def test_ids_are_not_taken_for_what_a_request_claims(upstream_url: str) -> None:
    """A list of prompts takes no ids for each before there are answers."""
    async with a_proxy(upstream_url, max_body_bytes=1_000_000) as proxy:
        path = proxy.open()
        prompts = [""] * 100_000
        await ask(proxy, path, "completions", prompt=prompts, n=128, fault={"kind": "http_400"})
        closed = await proxy.close(path)
        assert closed["last_sequence_id"] <= 128


WISHES = {
    "api_base": "http://127.0.0.1:9",
    "base_url": "http://127.0.0.1:9",
    "upstream": "http://127.0.0.1:9",
    "endpoint": "http://127.0.0.1:9",
}
HEADERS = (
    "x-upstream: http://127.0.0.1:9",
    "x-forwarded-host: 127.0.0.1:9",
    "forwarded: host=127.0.0.1:9",
    "x-original-url: http://127.0.0.1:9/",
    "openai-base-url: http://127.0.0.1:9",
)


@pytest.mark.parametrize(
    "target",
    [
        pytest.param("{}/v1/chat/completions", id="origin"),
        pytest.param("http://127.0.0.1:9{}/v1/chat/completions", id="absolute"),
        pytest.param("{}/v1/chat/completions?upstream=http://127.0.0.1:9", id="query"),
    ],
)
async def test_no_request_chooses_its_upstream(upstream_url: str, target: str) -> None:
    async with a_proxy(upstream_url) as proxy:
        path = proxy.open()
        body = orjson.dumps({"model": "http://127.0.0.1:9", "messages": [], "max_tokens": 3, **WISHES})
        async with connected(proxy.url) as connection:
            await connection.send(request(target.format(path), body, *HEADERS))
            answer = await connection.answer()
        told = orjson.loads(answer.body)
        assert answer.status == 200
        assert told["choices"][0]["message"]["content"] == said(told["id"]).text
        (span,) = proxy.spans()
        assert span.attributes["headrace.engine"] == "engine-0"


@pytest.mark.parametrize(
    "name",
    [
        "..%2f..%2fhealth",
        "../../health",
        "%2e%2e/%2e%2e/health",
        "x/../../../health",
        "..%2f..%2fhealth%3fx",
        "http:%2f%2f127.0.0.1:9%2fhealth",
        "%252e%252e%252f%252e%252e%252fhealth",
        "x%3f..%2f..%2fhealth",
        "x%23%2f..",
        "..",
        "%2f%2f127.0.0.1:9",
    ],
)
async def test_no_model_s_name_leads_elsewhere(upstream_url: str, name: str) -> None:
    """The upstream has other paths, some to manage it by."""
    async with a_proxy(upstream_url) as proxy, connected(proxy.url) as connection:
        await connection.send(request(f"{proxy.open()}/v1/models/{name}", method="GET"))
        assert (await connection.answer()).status == 404


async def test_a_model_s_name_may_have_slashes() -> None:
    heard: list[bytes] = []
    async with answering(b"{}", heard) as url, a_proxy(url) as proxy:
        assert (await proxy.client.get(f"{proxy.open()}/v1/models/org/tiny:v1")).status_code == 200
    assert heard[0].startswith(b"GET /v1/models/org/tiny:v1 HTTP/1.1\r\n")


async def test_what_the_client_sends_stays_here(upstream_url: str) -> None:
    """Neither its secrets nor its cookies go upstream."""
    heard: list[bytes] = []
    secrets = {
        "authorization": "Bearer SECRET",
        "x-api-key": "SECRET",
        "cookie": "SECRET",
        "x-other": "SECRET",
    }
    async with answering(b"{}", heard, ELSEWHERE) as url, a_proxy(url) as proxy:
        proxy.client.headers.update(secrets)
        response = await proxy.chat(proxy.open())
    assert len(heard) == 1
    assert b"SECRET" not in heard[0]
    # Redirects are not followed, and not passed on.
    assert "location" not in response.headers
