"""OpenAI's and Anthropic's own clients, unchanged but for their base URL: they read what the proxy says."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from anthropic import Anthropic, AsyncAnthropic
from openai import AsyncOpenAI, OpenAI
from tests.proxy.harness import Proxy, a_proxy, until, upstream_url
from tests.streams.runner.twins import MemoryOutlet

from headrace.proxy.keys import KeyRing, add_key

__all__ = ["upstream_url"]

HELLO: Any = [{"role": "user", "content": "hello"}]
CHAT: Any = {"model": "fake", "messages": HELLO, "max_tokens": 4}
COMPLETION: Any = {"model": "fake", "prompt": "hello", "max_tokens": 4}
RESPONSE: Any = {"model": "fake", "input": "hello", "max_output_tokens": 4}

Options = dict[str, Any]


def options(proxy: Proxy, path: str, *, is_openai: bool) -> Options:
    base_url = f"{proxy.url}{path}" + ("/v1" if is_openai else "")
    return {"base_url": base_url, "api_key": proxy.token, "max_retries": 0}


def recorded(proxy: Proxy) -> str:
    """What the one call said, by its span, which can be trained on."""
    (span,) = proxy.spans()
    assert span.generation is not None
    assert span.generation.why_untrainable() is None
    (choice,) = json.loads(span.generation.response)["choices"]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


# --- OpenAI ------------------------------------------------------------------------------------------


async def chat(client: AsyncOpenAI) -> str:
    answer = await client.chat.completions.create(**CHAT)
    return answer.choices[0].message.content or ""


async def chat_stream(client: AsyncOpenAI) -> str:
    async with client.chat.completions.stream(**CHAT) as stream:
        words = [event.delta async for event in stream if event.type == "content.delta"]
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == "".join(words)
    return "".join(words)


async def completion(client: AsyncOpenAI) -> str:
    answer = await client.completions.create(**COMPLETION)
    return str(answer.choices[0].text)


async def completion_stream(client: AsyncOpenAI) -> str:
    stream = await client.completions.create(**COMPLETION, stream=True)
    return "".join([chunk.choices[0].text async for chunk in stream])


async def response(client: AsyncOpenAI) -> str:
    answer = await client.responses.create(**RESPONSE)
    return str(answer.output_text)


async def response_stream(client: AsyncOpenAI) -> str:
    async with client.responses.stream(**RESPONSE) as stream:
        words = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert final.output_text == "".join(words)
    return final.output_text


def sync_chat(client: OpenAI) -> str:
    answer = client.chat.completions.create(**CHAT)
    return answer.choices[0].message.content or ""


def sync_chat_stream(client: OpenAI) -> str:
    stream = client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    assert chunks[-1].usage.completion_tokens == 4
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])


def sync_completion(client: OpenAI) -> str:
    answer = client.completions.create(**COMPLETION)
    return str(answer.choices[0].text)


def sync_response(client: OpenAI) -> str:
    answer = client.responses.create(**RESPONSE)
    return str(answer.output_text)


def sync_response_stream(client: OpenAI) -> str:
    with client.responses.stream(**RESPONSE) as stream:
        return stream.get_final_response().output_text


@pytest.mark.parametrize(
    "use",
    [chat, chat_stream, completion, completion_stream, response, response_stream],
    ids=lambda f: f.__name__,
)
async def test_openai(upstream_url: str, use: Callable[[AsyncOpenAI], Awaitable[str]]) -> None:
    async with a_proxy(upstream_url) as proxy:
        async with AsyncOpenAI(**options(proxy, proxy.open(), is_openai=True)) as client:
            words = await use(client)
        assert words == recorded(proxy) != ""


@pytest.mark.parametrize(
    "use",
    [sync_chat, sync_chat_stream, sync_completion, sync_response, sync_response_stream],
    ids=lambda f: f.__name__,
)
async def test_openai_in_a_thread(upstream_url: str, use: Callable[[OpenAI], str]) -> None:
    async with a_proxy(upstream_url) as proxy:
        with OpenAI(**options(proxy, proxy.open(), is_openai=True)) as client:
            words = await asyncio.to_thread(use, client)
        assert words == recorded(proxy) != ""


async def test_openai_lists_models(upstream_url: str) -> None:
    async with a_proxy(upstream_url) as proxy:
        async with AsyncOpenAI(**options(proxy, proxy.open(), is_openai=True)) as client:
            assert [model.id async for model in client.models.list()] == ["fake"]
        assert proxy.spans() == []


# --- Anthropic ---------------------------------------------------------------------------------------


async def message(client: AsyncAnthropic) -> str:
    answer = await client.messages.create(**CHAT)
    assert (answer.type, answer.role, answer.usage.output_tokens) == ("message", "assistant", 4)
    return "".join(block.text for block in answer.content if block.type == "text")


async def message_stream(client: AsyncAnthropic) -> str:
    async with client.messages.stream(**CHAT) as stream:
        words = [text async for text in stream.text_stream]
        final = await stream.get_final_message()
    assert (final.stop_reason, final.usage.output_tokens) == ("end_turn", 4)
    return "".join(words)


def sync_message(client: Anthropic) -> str:
    return "".join(block.text for block in client.messages.create(**CHAT).content if block.type == "text")


def sync_message_stream(client: Anthropic) -> str:
    with client.messages.stream(**CHAT) as stream:
        return stream.get_final_text()


@pytest.mark.parametrize("use", [message, message_stream], ids=lambda f: f.__name__)
async def test_anthropic(upstream_url: str, use: Callable[[AsyncAnthropic], Awaitable[str]]) -> None:
    async with a_proxy(upstream_url) as proxy:
        async with AsyncAnthropic(**options(proxy, proxy.open(), is_openai=False)) as client:
            words = await use(client)
        assert words == recorded(proxy) != ""


@pytest.mark.parametrize("use", [sync_message, sync_message_stream], ids=lambda f: f.__name__)
async def test_anthropic_in_a_thread(upstream_url: str, use: Callable[[Anthropic], str]) -> None:
    async with a_proxy(upstream_url) as proxy:
        with Anthropic(**options(proxy, proxy.open(), is_openai=False)) as client:
            words = await asyncio.to_thread(use, client)
        assert words == recorded(proxy) != ""


async def test_anthropic_counts_tokens(upstream_url: str) -> None:
    async with a_proxy(upstream_url) as proxy:
        async with AsyncAnthropic(**options(proxy, proxy.open(), is_openai=False)) as client:
            counted = await client.messages.count_tokens(model="fake", messages=HELLO)
        assert counted.input_tokens == 7
        assert proxy.spans() == []


# --- errors ------------------------------------------------------------------------------------------


@asynccontextmanager
async def in_trouble(upstream: str, trouble: str, folder: Path) -> AsyncIterator[tuple[Proxy, str]]:
    """A proxy, and the path of an attempt, whose next call will be refused for this reason."""
    outlet, keys = MemoryOutlet(), None
    if trouble == "another key":
        add_key(folder / "keys.json", "runner")
        keys = KeyRing(folder / "keys.json")
    async with a_proxy(upstream, outlet, keys, max_calls=1) as proxy:
        path = proxy.open()
        running = None
        match trouble:
            case "another key":
                proxy.token = "another"  # noqa: S105  not a secret
            case "closed":
                await proxy.close(path)
            case "unknown":
                path = path[:-4] + "0000"
            case "busy":
                running = asyncio.ensure_future(proxy.chat(path, fault={"kind": "hangs"}))
                await until(lambda: bool(proxy.attempts.get(path[3:]).num_calls))
            case "kafka":
                outlet.is_held = True
                lost = asyncio.ensure_future(proxy.chat(path))
                await until(lambda: bool(outlet.records))
                outlet.settle("broker gone")
                assert (await lost).status_code == 503
        yield proxy, path
        if running is not None:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        outlet.is_held = False
        outlet.settle()


TROUBLES: list[Any] = [
    pytest.param("another key", 401, (openai.AuthenticationError, anthropic.AuthenticationError), id="key"),
    pytest.param("unknown", 404, (openai.NotFoundError, anthropic.NotFoundError), id="unknown attempt"),
    pytest.param("closed", 410, (openai.APIStatusError, anthropic.APIStatusError), id="closed attempt"),
    pytest.param("busy", 429, (openai.RateLimitError, anthropic.RateLimitError), id="busy"),
    pytest.param("kafka", 503, (openai.InternalServerError, anthropic.ServiceUnavailableError), id="Kafka"),
]


@pytest.mark.parametrize(("trouble", "status", "raised"), TROUBLES)
async def test_refusals_raise_what_the_clients_have_for_them(
    upstream_url: str,
    tmp_path: Path,
    trouble: str,
    status: int,
    raised: tuple[type[openai.APIStatusError], type[anthropic.APIStatusError]],
) -> None:
    of_openai, of_anthropic = raised
    async with in_trouble(upstream_url, trouble, tmp_path) as (proxy, path):
        async with AsyncOpenAI(**options(proxy, path, is_openai=True)) as client:
            for use in (chat, chat_stream, completion, response, response_stream):
                with pytest.raises(of_openai) as refused:
                    await use(client)
                assert refused.value.status_code == status
                assert refused.value.code
        async with AsyncAnthropic(**options(proxy, path, is_openai=False)) as other:
            for ask in (message, message_stream):
                with pytest.raises(of_anthropic) as denied:
                    await ask(other)
                assert denied.value.status_code == status


FAULTS = {
    "http_400": (openai.BadRequestError, anthropic.BadRequestError),
    "http_500": (openai.InternalServerError, anthropic.InternalServerError),
    "not_json": (openai.InternalServerError, anthropic.InternalServerError),
    "dies": (openai.InternalServerError, anthropic.InternalServerError),
}
APIS = ["chat", "completions", "responses", "messages"]


async def ask(proxy: Proxy, api: str, **given: Any) -> None:
    """A call by the official client, to the end of its answer."""
    path = proxy.open()
    async with (
        AsyncOpenAI(**options(proxy, path, is_openai=True)) as client,
        AsyncAnthropic(**options(proxy, path, is_openai=False)) as other,
    ):
        asked: dict[str, tuple[Any, Any]] = {
            "chat": (client.chat.completions.create, CHAT),
            "completions": (client.completions.create, COMPLETION),
            "responses": (client.responses.create, RESPONSE),
            "messages": (other.messages.create, CHAT),
        }
        create, body = asked[api]
        answer = await create(**body, **given)
        if given.get("stream"):
            async for _ in answer:
                pass


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("kind", FAULTS)
async def test_faults_of_the_upstream_raise_what_the_clients_have_for_them(
    upstream_url: str, kind: str, api: str
) -> None:
    async with a_proxy(upstream_url) as proxy:
        with pytest.raises(FAULTS[kind][api == "messages"]):
            await ask(proxy, api, extra_body={"fault": {"kind": kind}})
        assert [span.status for span in proxy.spans()] == ["error"]


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("kind", ["dies", "ends_early", "error_event"])
async def test_a_stream_that_breaks_off_raises(upstream_url: str, kind: str, api: str) -> None:
    """Nobody takes half an answer for a whole one."""
    async with a_proxy(upstream_url) as proxy:
        with pytest.raises(anthropic.APIError if api == "messages" else openai.APIError):
            await ask(proxy, api, extra_body={"fault": {"kind": kind, "after": 3}}, stream=True)
        assert [span.status for span in proxy.spans()] == ["error"]
