"""What the endpoints need of ASGI beside Starlette: bounded bodies read at once, answers written by hand."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import orjson

from headrace.proxy.dialect import Json
from headrace.proxy.problem import Problem, RefusedError, bad_request

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON = b"application/json"
EVENT_STREAM = b"text/event-stream; charset=utf-8"


class ClientGoneError(Exception):
    """It went before its request was whole."""


def headers_of(scope: Scope) -> dict[str, str]:
    """By lower-case name; of several of one name the last."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def secret_of(headers: Mapping[str, str]) -> str:
    """What OpenAI's clients send as a bearer token and Anthropic's as x-api-key; empty if there is none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "").strip()


async def read_body(
    receive: Receive, headers: Mapping[str, str], *, max_bytes: int, timeout_s: float
) -> bytes:
    """RefusedError 413 past the limit, 408 past the time; ClientGoneError."""
    too_large = RefusedError(Problem(413, f"a request may have {max_bytes} bytes", "request_too_large"))
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > max_bytes:
        raise too_large
    parts: list[bytes] = []
    num_bytes = 0
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                if piece := message.get("body", b""):
                    parts.append(piece)
                    num_bytes += len(piece)
                    if num_bytes > max_bytes:
                        raise too_large
                if not message.get("more_body", False):
                    return parts[0] if len(parts) == 1 else b"".join(parts)
    except TimeoutError:
        raise RefusedError(
            Problem(408, f"the request did not come within {timeout_s:g} s", "request_timeout")
        ) from None


def json_object(body: bytes) -> Json:
    """RefusedError if it is none."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"the body is no JSON: {error.msg} at {error.pos}") from None
    if not isinstance(value, dict):
        raise bad_request("the body is no JSON object")
    return value


async def send_start(
    send: Send, status: int, content_type: bytes, headers: Mapping[str, str], length: int | None = None
) -> None:
    raw = [(b"content-type", content_type)]
    if length is not None:
        raw.append((b"content-length", str(length).encode()))
    raw += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})


async def send_piece(send: Send, body: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def send_whole(
    send: Send, status: int, body: bytes, headers: Mapping[str, str] | None = None, content_type: bytes = JSON
) -> None:
    await send_start(send, status, content_type, headers or {}, len(body))
    await send_piece(send, body, more=False)


async def send_problem(send: Send, problem: Problem, body: bytes) -> None:
    """`body` is the problem in the dialect's shape."""
    wait = problem.retry_after_s
    await send_whole(send, problem.status, body, {} if wait is None else {"retry-after": str(wait)})
