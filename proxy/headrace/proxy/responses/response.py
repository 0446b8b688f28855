"""The response object: what the request said, what came out, how it ended. Pure."""

from typing import Any, Literal, NamedTuple

from headrace.proxy.dialect import Json
from headrace.proxy.problem import Problem
from headrace.proxy.responses.items import Status
from headrace.proxy.responses.request import object_in

ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed"]

_WHOLE = frozenset({"stop", "tool_calls", "function_call"})
_CUT_SHORT = {"length": "max_output_tokens", "content_filter": "content_filter"}

_ECHOED: Json = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "store": True,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": None,
    "user": None,
}
"""Of the request, with what stands where it says nothing. What the engine draws with is not known here."""


_MAX_COUNT = 2**53
"""Beyond it not every reader of JSON is exact."""


class Ending(NamedTuple):
    status: Status
    reason: str | None = None
    """Of an incomplete one, where the API has a word for it."""

    @classmethod
    def of(cls, finish_reason: str | None) -> "Ending":
        if finish_reason is None or finish_reason in _WHOLE:
            return cls("completed")
        return cls("incomplete", _CUT_SHORT.get(finish_reason))


def response_base(body: Json, response_id: str) -> Json:
    """What does not change from a response's first event to its last."""
    echoed = {
        member: default if body.get(member) is None else body[member] for member, default in _ECHOED.items()
    }
    echoed["metadata"] = object_in(body, "metadata")
    if "format" not in echoed["text"]:
        echoed["text"] = _ECHOED["text"] | echoed["text"]
    return {
        "id": response_id,
        "object": "response",
        "background": False,
        "model": body.get("model") or "",
        # What is too long is the upstream's to refuse.
        "truncation": "disabled",
        **echoed,
    }


def response_object(
    base: Json,
    status: ResponseStatus,
    output: list[Json],
    *,
    usage: Json | None = None,
    reason: str | None = None,
    error: Json | None = None,
) -> Json:
    return base | {
        "status": status,
        "output": output,
        "usage": None if usage is None else _usage(usage),
        "incomplete_details": {"reason": reason} if status == "incomplete" else None,
        "error": error,
    }


def failure(problem: Problem) -> Json:
    """A response's `error`: the API has few codes for it."""
    code = "server_error"
    if problem.status == 429:
        code = "rate_limit_exceeded"
    elif problem.is_clients_fault:
        code = "invalid_prompt"
    return {"code": code, "message": problem.message}


def token_logprobs(given: Any) -> list[Json]:  # noqa: ANN401  JSON
    """Chat's `logprobs`, in the form of a text part."""
    content = given.get("content") if isinstance(given, dict) else None
    return [
        _token(entry) | {"top_logprobs": [_token(top) for top in entry.get("top_logprobs") or ()]}
        for entry in (content if isinstance(content, list) else ())
    ]


def _token(entry: Json) -> Json:
    text = entry["token"]
    given = entry.get("bytes")
    return {
        "token": text,
        "bytes": list(text.encode()) if given is None else given,
        "logprob": entry["logprob"],
    }


def _usage(usage: Json) -> Json:
    num_in, num_out = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    details_in = usage.get("prompt_tokens_details")
    details_out = usage.get("completion_tokens_details")
    return {
        "input_tokens": num_in,
        "input_tokens_details": {
            "cached_tokens": _count(details_in, "cached_tokens"),
            "cache_write_tokens": _count(details_in, "cache_write_tokens"),
        },
        "output_tokens": num_out,
        "output_tokens_details": {"reasoning_tokens": _count(details_out, "reasoning_tokens")},
        "total_tokens": _count(usage, "total_tokens") or num_in + num_out,
    }


def _count(counts: object, name: str) -> int:
    value = counts.get(name) if isinstance(counts, dict) else None
    return value if isinstance(value, int) and 0 <= value <= _MAX_COUNT else 0
