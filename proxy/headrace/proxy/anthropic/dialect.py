"""The dialect: one call of the Messages API, told to the upstream and back."""

from collections.abc import Mapping
from typing import Literal

import orjson

from headrace.proxy import sse
from headrace.proxy.anthropic.answer import message_of
from headrace.proxy.anthropic.faults import error_body, upstream_error_body
from headrace.proxy.anthropic.request import to_chat
from headrace.proxy.anthropic.stream import MessageStream
from headrace.proxy.dialect import Dialect, Exchange, Json
from headrace.proxy.problem import Problem

_PASSED = {"x-request-id": "request-id", "retry-after": "retry-after"}


class AnthropicExchange:
    def __init__(self, request: Json) -> None:
        self.request = request
        self.is_stream = request.get("stream") is True
        self._model: str = request["model"]
        self._stream = MessageStream(self._model)

    def answer(self, completion: Json) -> bytes:
        return orjson.dumps(message_of(completion, self._model))

    def feed(self, chunk: Json) -> bytes:
        return self._stream.feed(chunk)

    def finish(self) -> bytes:
        return self._stream.finish()

    def fail(self, problem: Problem) -> bytes:
        """The libraries raise on an event of this name, wherever it stands."""
        return sse.event(error_body(problem), "error")


class AnthropicDialect:
    name = "anthropic_messages"
    operation: Literal["chat", "text_completion"] = "chat"
    upstream_path = "/v1/chat/completions"

    def open(self, body: Json) -> Exchange:
        return AnthropicExchange(to_chat(body))

    def error(self, problem: Problem) -> bytes:
        return error_body(problem)

    def upstream_error(self, status: int, body: bytes) -> bytes:
        return upstream_error_body(status, body)

    def headers(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        return {ours: headers[theirs] for theirs, ours in _PASSED.items() if theirs in headers}


MESSAGES: Dialect = AnthropicDialect()
