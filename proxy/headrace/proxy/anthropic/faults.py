"""Errors in the shape of Anthropic's API, ours and the upstream's. Pure.

https://docs.anthropic.com/en/api/errors
"""

from typing import Any

import orjson

from headrace.proxy.problem import Problem

_MAX_TEXT = 2000
"""Characters of an upstream's error that is no JSON: mostly a page of HTML."""

_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def error_body(problem: Problem) -> bytes:
    named = f"{problem.param}: {problem.message}" if problem.param else problem.message
    return _body(problem.status, named)


def upstream_error_body(status: int, body: bytes) -> bytes:
    """The upstream's own words, of whatever form its error is."""
    try:
        message = _message_in(orjson.loads(body))
    except orjson.JSONDecodeError:
        message = body.decode(errors="replace").strip()[:_MAX_TEXT]
    return _body(status, message or f"the upstream answered {status} and said nothing")


def _body(status: int, message: str) -> bytes:
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return orjson.dumps({"type": "error", "error": {"type": kind, "message": message}})


def _message_in(value: Any) -> str:  # noqa: ANN401  JSON
    """OpenAI's `error.message`, older vLLM's `message`, FastAPI's `detail`, or all of it."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        for name in ("error", "message", "detail"):
            if value.get(name):
                return _message_in(value[name])
    return orjson.dumps(value).decode()[:_MAX_TEXT] if value else ""
