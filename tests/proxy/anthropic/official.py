"""The official client, fed with what the dialect says, and builders of what an upstream says."""

import asyncio
from collections.abc import Iterable
from typing import Any

import anthropic
import httpx2
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from headrace.proxy.anthropic import MESSAGES
from headrace.proxy.dialect import Json
from headrace.proxy.sse import EventReader

BODY: Json = {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}
USAGE: Json = {"prompt_tokens": 12, "completion_tokens": 7, "total_tokens": 19}

_EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)


def call(name: str = "look", arguments: str = '{"x": 1}', id: str = "call_1") -> Json:  # noqa: A002  its name
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def completion(message: Json, finish_reason: str | None = "stop", **choice: Any) -> Json:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m-1",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant"} | message,
                "finish_reason": finish_reason,
                **choice,
            }
        ],
        "usage": USAGE,
    }


def chunk(delta: Json | None = None, finish_reason: str | None = None, **choice: Any) -> Json:
    """Without a delta and a reason, one of no choices."""
    choices: list[Json] = []
    if delta is not None or finish_reason is not None:
        choices = [{"index": 0, "delta": delta or {}, "finish_reason": finish_reason, **choice}]
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m-1", "choices": choices}


def streamed(chunks: Iterable[Json]) -> bytes:
    exchange = MESSAGES.open(BODY | {"stream": True})
    return b"".join(map(exchange.feed, chunks)) + exchange.finish()


def events_in(body: bytes) -> list[RawMessageStreamEvent]:
    """Each as the official models read it; pings have none."""
    reader = EventReader()
    data = reader.feed(body)
    assert reader.is_between
    return [_EVENT.validate_json(each) for each in data if each != b'{"type":"ping"}']


def accumulate(body: bytes) -> Message:
    """The message that `messages.stream` of the official client makes of it."""

    async def main() -> Message:
        async with (
            _client(200, body, "text/event-stream") as client,
            client.messages.stream(
                model="m", max_tokens=64, messages=[{"role": "user", "content": "hi"}]
            ) as stream,
        ):
            return await stream.get_final_message()

    return asyncio.run(main())


def create(status: int, body: bytes) -> Message:
    """What `messages.create` makes of an answer in one piece."""

    async def main() -> Message:
        async with _client(status, body, "application/json") as client:
            return await client.messages.create(
                model="m", max_tokens=64, messages=[{"role": "user", "content": "hi"}]
            )

    return asyncio.run(main())


def _client(status: int, body: bytes, content_type: str) -> anthropic.AsyncAnthropic:
    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, content=body, headers={"content-type": content_type})

    transport = httpx2.MockTransport(answer)
    return anthropic.AsyncAnthropic(
        api_key="k",
        base_url="http://proxy",
        max_retries=0,
        http_client=httpx2.AsyncClient(transport=transport),
    )
