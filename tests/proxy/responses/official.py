"""The official client over the dialect and a scripted upstream; and builders of what upstreams say."""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import openai
import orjson
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from headrace.proxy.dialect import Json
from headrace.proxy.problem import RefusedError
from headrace.proxy.responses import ResponsesDialect, ResponseStore
from headrace.proxy.sse import EventReader

BODY: Json = {"model": "m", "input": "hi"}
USAGE: Json = {
    "prompt_tokens": 12,
    "completion_tokens": 7,
    "total_tokens": 19,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 2},
}
WEATHER: Json = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}
AN_ID = "0197f5e2-0000-7000-8000-000000000001"
HEX = AN_ID.replace("-", "")

_EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)


def call(call_id: str | None = "call_1", name: str = "weather", arguments: str = '{"city": "Oslo"}') -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def completion(message: Json, finish_reason: str | None = "stop", **choice: Any) -> Json:
    message = {"role": "assistant", "content": None} | message
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "m-1",
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason, **choice}],
        "usage": USAGE,
    }


def chunk(delta: Json | None = None, finish_reason: str | None = None, **choice: Any) -> Json:
    """Without a delta and a reason, one of no choices."""
    choices: list[Json] = []
    if delta is not None or finish_reason is not None:
        choices = [{"index": 0, "delta": delta or {}, "finish_reason": finish_reason, **choice}]
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "m-1"}
    return head | {"choices": choices}


USAGE_CHUNK = chunk() | {"usage": USAGE}


def chunks_of(answer: Json) -> Iterator[Json]:
    """As coarse as an upstream could: a chunk for the message, one for its end, one for usage."""
    choice = answer["choices"][0]
    message = dict(choice["message"])
    if message.get("tool_calls"):
        message["tool_calls"] = [each | {"index": i} for i, each in enumerate(message["tool_calls"])]
    yield chunk(message)
    yield chunk({}, choice["finish_reason"])
    yield chunk() | {"usage": answer["usage"]}


def dialect(store: ResponseStore | None = None) -> ResponsesDialect:
    return ResponsesDialect(ResponseStore() if store is None else store, lambda: AN_ID)


def answered(answer: Json, **body: Any) -> Response:
    return Response.model_validate_json(dialect().open(BODY | body).answer(answer))


def events_in(sent: bytes) -> list[ResponseStreamEvent]:
    """As the official models read them, numbered as they should be."""
    reader = EventReader()
    data = reader.feed(sent)
    assert reader.is_between
    events = [_EVENT.validate_json(each) for each in data]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return events


def streamed(chunks: Iterable[Json], **body: Any) -> list[ResponseStreamEvent]:
    exchange = dialect().open(BODY | {"stream": True} | body)
    return events_in(b"".join(map(exchange.feed, chunks)) + exchange.finish())


def last_response(events: Sequence[ResponseStreamEvent]) -> Response:
    ended = events[-1]
    assert ended.type in ("response.completed", "response.incomplete")
    return ended.response


class Proxy:
    """What a proxy would do with the dialect, over an upstream that gives these answers in turn."""

    def __init__(self, *answers: Json, store: ResponseStore | None = None) -> None:
        self.answers = list(answers)
        self.requests: list[Json] = []
        """As the upstream sees them."""
        self.received: list[Json] = []
        self.dialect = ResponsesDialect(ResponseStore() if store is None else store)

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        assert request.url.path == "/v1/responses"
        body = orjson.loads(request.content)
        self.received.append(body)
        try:
            exchange = self.dialect.open(body)
        except RefusedError as refused:
            problem = refused.problem
            return httpx2.Response(problem.status, content=self.dialect.error(problem), headers=_JSON)
        self.requests.append(exchange.request)
        answer = self.answers.pop(0)
        if not exchange.is_stream:
            return httpx2.Response(200, content=exchange.answer(answer), headers=_JSON)
        sent = b"".join(map(exchange.feed, chunks_of(answer))) + exchange.finish()
        return httpx2.Response(200, content=sent, headers=_EVENTS)

    def client(self) -> openai.AsyncOpenAI:
        return client_of(httpx2.MockTransport(self))


@asynccontextmanager
async def client_reading(sent: bytes, status: int = 200) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client of a server that sends this, whatever it is asked."""
    headers = _EVENTS if status == 200 else _JSON
    transport = httpx2.MockTransport(lambda _: httpx2.Response(status, content=sent, headers=headers))
    async with client_of(transport) as client:
        yield client


def client_of(transport: httpx2.AsyncBaseTransport) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        api_key="k",
        base_url="http://proxy/v1",
        max_retries=0,
        http_client=httpx2.AsyncClient(transport=transport),
        _strict_response_validation=True,
    )


_JSON = {"content-type": "application/json"}
_EVENTS = {"content-type": "text/event-stream"}
