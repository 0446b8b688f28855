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
    "a reason is no text": {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": ["stop"]}]},
    "a reason is a number": {"choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": 7}]},
    "an index is too large": {"choices": [{"index": 2**31, "delta": {"content": "x"}}]},
    "an index is a list": {"choices": [{"index": [0], "delta": {"content": "x"}, "finish_reason": "stop"}]},
    "details are a list": {
        "choices": [{"index": 0, "delta": {"content": "x"}}],
        "usage": {"prompt_tokens_details": [1], "completion_tokens": 1},
    },
    "usage is too large": {
        "choices": [{"index": 0, "delta": {"content": "x"}}],
        "usage": {"prompt_tokens": 2**63, "completion_tokens": 2**64 - 1},
    },
    "usage is a text": {"choices": [{"index": 0, "message": {}}], "usage": {"completion_tokens": "x"}},
    "calls in odd places": {
        "choices": [
            {
                "index": 0,
                "delta": {"tool_calls": [{"index": "a"}, {"index": 1}]},
                "message": {"tool_calls": [{"index": "a"}, {"index": 1}]},
            }
        ]
    },
    "a model is no text": {"model": {"x": 1}, "choices": [{"index": 0, "delta": {"content": "x"}}]},
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
    """It is one span that is never trained on, and the client hears what there is, or that it failed."""
    body = orjson.dumps({"id": "x", "model": "odd", **odd})
    if stream:
        body = b"data: " + body + b"\n\ndata: [DONE]\n\n"
    async with answering(body) as url, a_proxy(url) as proxy:
        path = proxy.open()
        status, text = await ask(proxy, path, api, stream=stream)
        assert status in {200, 502}, text
        assert stream or text
        (span,) = proxy.spans()
        assert span.kind == "client"
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


LABELLED = b"HTTP/1.1 %d X\r\nx-request-id: abc\r\nretry-after: 7\r\nx-internal: secret"
PAGE = b"<html>Bad Gateway</html>"


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("status", "body"), [(200, b'{"choices": []}'), (429, b'{"error": {"message": "busy"}}'), (502, PAGE)]
)
async def test_the_upstream_s_headers_come_with_whole_answers_and_errors(
    api: str, status: int, body: bytes
) -> None:
    """Those that clients know; and an error is JSON, whatever the upstream's was."""
    async with answering(body, status=LABELLED % status) as url, a_proxy(url) as proxy:
        answer = await proxy.client.post(
            f"{proxy.open()}/v1/{api}", json={"model": "m", "max_tokens": 1, **APIS[api]}
        )
        assert answer.status_code == status
        name = "request-id" if api == "messages" else "x-request-id"
        assert (answer.headers[name], answer.headers["retry-after"]) == ("abc", "7")
        assert "x-internal" not in answer.headers
        assert answer.headers["content-type"] == "application/json"
        if status == 502:
            assert answer.json()["error"]["message"] == PAGE.decode()
            (span,) = proxy.spans()
            assert span.generation is not None
            assert span.generation.response == PAGE.decode()


@pytest.mark.parametrize("api", ["chat/completions", "responses"])
async def test_a_stream_that_says_an_error_says_it_to_the_client_and_the_record(
    upstream_url: str, api: str
) -> None:
    async with a_proxy(upstream_url) as proxy:
        fault = {"kind": "error_event", "after": 3}
        _, text = await ask(proxy, proxy.open(), api, stream=True, fault=fault)
        assert "engine died" in text
        (span,) = proxy.spans()
        assert span.generation is not None
        told = orjson.loads(span.generation.response)
        assert told["error"]["message"] == "engine died"
        assert told["choices"][0]["message"]["content"]


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("api", APIS)
async def test_a_request_that_is_nested_too_deeply_is_the_client_s_fault(upstream_url: str, api: str) -> None:
    async with a_proxy(upstream_url) as proxy:
        path = proxy.open()
        status, text = await ask(proxy, path, api, x_own={"x": "y"})
        assert status == 200, text
        body = orjson.dumps({"model": "m", "max_tokens": 1, **APIS[api]})[:-1]
        body += b', "x_own": ' + b"[" * 300 + b"]" * 300 + b"}"
        answer = await proxy.client.post(f"{path}/v1/{api}", content=body)
        assert answer.status_code == 400
        assert "nested too deeply" in answer.text
        assert [span.kind for span in proxy.spans() if span.sequence_id != 1] == ["void"]


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("stream", [1, "true"], ids=repr)
async def test_a_stream_is_asked_for_with_true(upstream_url: str, api: str, stream: object) -> None:
    async with a_proxy(upstream_url) as proxy:
        status, _ = await ask(proxy, proxy.open(), api, stream=stream)
        assert status == 400
        assert proxy.spans() == []


async def test_a_client_that_stops_reading_gives_its_place_back_and_is_said_to_have() -> None:
    """Long before the call's own time is over, and its connection is gone."""
    chunk = {"id": "x", "choices": [{"index": 0, "delta": {"content": "x" * 10_000}}]}
    long = b"data: " + orjson.dumps(chunk) + b"\n\n"
    body = {"model": "fake", "messages": [], "stream": True}
    async with answering(long * 1500) as url, a_proxy(url, send_timeout_s=0.2) as proxy:
        path = proxy.open()
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", int(proxy.url.rpartition(":")[2])))
            client.sendall(request(f"{path}/v1/chat/completions", orjson.dumps(body)))
            await until(lambda: bool(proxy.spans()))
            (span,) = proxy.spans()
            assert span.status_message == "client_stalled"
            (engine,) = proxy.parts.engines
            assert engine.num_calls == 0
            # Though what was written is not taken, and never will be.
            await until(lambda: proxy.num_connections() == 0)


async def test_a_silence_ends_a_stream_and_no_answer_in_one_piece(upstream_url: str) -> None:
    """Which comes when it is whole: the call's own time bounds it."""
    async with a_proxy(upstream_url, idle_timeout_s=0.05, call_timeout_s=0.5) as proxy:
        fault = {"kind": "stalls", "after": 2}
        loop = asyncio.get_running_loop()
        began = loop.time()
        status, text = await ask(proxy, proxy.open(), "chat/completions", stream=True, fault=fault)
        assert (status, loop.time() - began < 0.5) == (200, True)
        assert "upstream_timeout" in text
        began = loop.time()
        status, _ = await ask(proxy, proxy.open(), "chat/completions", fault=fault)
        assert (status, loop.time() - began >= 0.5) == (504, True)


async def test_an_answer_of_another_model_has_no_version(upstream_url: str) -> None:
    async with a_proxy(upstream_url) as proxy:
        (engine,) = proxy.parts.engines
        for names, reason in (({"fake"}, None), ({"base"}, "other_model"), (set(), None)):
            engine.base_models = frozenset(names)
            await ask(proxy, proxy.open(), "chat/completions")
            made = proxy.outlet.records[-1].generation
            assert made.why_untrainable() == reason
            assert (made.resource_version is None) == (reason is not None)


async def test_more_choices_than_are_asked_for() -> None:
    choices = [{"index": index, "message": {"content": "x"}, "finish_reason": "stop"} for index in range(3)]
    async with answering(orjson.dumps({"choices": choices})) as url, a_proxy(url) as proxy:
        path = proxy.open()
        await ask(proxy, path, "chat/completions")
        generations = [span.generation for span in proxy.spans() if span.generation]
        assert [(each.choice_index, each.num_choices) for each in generations] == [(0, 3), (1, 3), (2, 3)]
        status, _ = await ask(proxy, path, "chat/completions", n="2")
        assert status == 400
