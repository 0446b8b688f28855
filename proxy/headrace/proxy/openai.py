"""OpenAI's chat completions and completions: the upstream's own words, so that all members pass through."""

from collections.abc import Mapping
from typing import Literal

import orjson

from headrace.proxy import ask, sse
from headrace.proxy.dialect import Exchange, Json
from headrace.proxy.problem import Problem

_PASSED = ("x-request-id", "retry-after")
_MAX_TEXT = 2000
"""Characters of an upstream's error that is no JSON: mostly a page of HTML."""

DONE = sse.event(b"[DONE]")


class OpenAIExchange:
    def __init__(self, request: Json) -> None:
        self.request = request
        self.is_stream = ask.is_stream(request)

    def answer(self, completion: Json) -> bytes:
        return orjson.dumps(completion)

    def feed(self, chunk: Json) -> bytes:
        return sse.event(orjson.dumps(chunk))

    def finish(self) -> bytes:
        return DONE

    def fail(self, problem: Problem) -> bytes:
        """The libraries raise on a chunk with an error in it."""
        return sse.event(error_body(problem))


class OpenAIShapes:
    """What all of OpenAI's APIs have in common: errors, and headers."""

    def error(self, problem: Problem) -> bytes:
        return error_body(problem)

    def upstream_error(self, status: int, body: bytes) -> bytes:
        try:
            orjson.loads(body)
        except orjson.JSONDecodeError:
            text = body.decode(errors="replace").strip()[:_MAX_TEXT]
            message = text or f"the upstream answered {status} and said nothing"
            return error_body(Problem(status, message, "upstream_error"))
        return body

    def headers(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        return {name: headers[name] for name in _PASSED if name in headers}


class OpenAIDialect(OpenAIShapes):
    def __init__(self, name: str, operation: Literal["chat", "text_completion"], upstream_path: str) -> None:
        self.name = name
        self.operation: Literal["chat", "text_completion"] = operation
        self.upstream_path = upstream_path

    def open(self, body: Json) -> Exchange:
        return OpenAIExchange(body)


def error_body(problem: Problem) -> bytes:
    """https://platform.openai.com/docs/guides/error-codes"""
    kind = "invalid_request_error" if problem.is_clients_fault else "server_error"
    if problem.status == 429:
        kind = "rate_limit_error"
    return orjson.dumps(
        {"error": {"message": problem.message, "type": kind, "param": problem.param, "code": problem.code}}
    )


CHAT = OpenAIDialect("openai_chat", "chat", "/v1/chat/completions")
COMPLETIONS = OpenAIDialect("openai_completions", "text_completion", "/v1/completions")
