"""Lines of recorded chats and OTLP requests for tests, with only what a test is about."""

import json
from typing import Any

CREATED = 1_790_000_000
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
START_NS = 1_790_000_000_123_456_789


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def choice(answer: str | dict[str, Any], index: int = 0, **more: Any) -> dict[str, Any]:
    message = assistant(answer) if isinstance(answer, str) else answer
    return {"index": index, "message": message, "finish_reason": "stop", **more}


def exchange(
    messages: list[dict[str, Any]],
    *answers: str | dict[str, Any],
    created: float = CREATED,
    request: dict[str, Any] | None = None,
    response: dict[str, Any] | None = None,
    **beside: Any,
) -> dict[str, Any]:
    choices = [choice(answer, index) for index, answer in enumerate(answers or ("yes",))]
    return {
        "request": {"model": "m", "messages": messages, **(request or {})},
        "response": {"id": "r", "created": created, "model": "m-1", "choices": choices, **(response or {})},
        **beside,
    }


def line(*arguments: Any, **more: Any) -> str:
    return json.dumps(exchange(*arguments, **more))


def attributes(values: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"key": key, "value": value} for key, value in values.items()]


def strings(**values: str) -> list[dict[str, Any]]:
    return attributes({key.replace("__", "."): {"stringValue": value} for key, value in values.items()})


def span(number: int = 1, **fields: Any) -> dict[str, Any]:
    return {
        "traceId": TRACE,
        "spanId": f"{number:016x}",
        "name": f"span {number}",
        "startTimeUnixNano": str(START_NS + number * 1_000_000),
        "endTimeUnixNano": str(START_NS + number * 1_000_000 + 500_000),
        **fields,
    }


def request(*spans: Any, resource: list[dict[str, Any]] | None = None, **scope: Any) -> dict[str, Any]:
    scope_spans = {"scope": {"name": "lib", **scope}, "spans": list(spans)}
    return {"resourceSpans": [{"resource": {"attributes": resource or []}, "scopeSpans": [scope_spans]}]}
