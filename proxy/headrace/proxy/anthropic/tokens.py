"""Counting a request's tokens, by vLLM's `/tokenize`, which renders the prompt as a call would. Pure."""

from typing import Any

import orjson

from headrace.proxy.anthropic.request import to_prompt
from headrace.proxy.dialect import Json
from headrace.proxy.problem import Problem, RefusedError

TOKENIZE_PATH = "/tokenize"

_TAKEN = (
    "model",
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template_kwargs",
    "mm_processor_kwargs",
)


def tokenize_request(body: Json) -> Json:
    """The upstream's body for one of `/v1/messages/count_tokens`; RefusedError."""
    prompt = to_prompt(body)
    request = {name: prompt[name] for name in _TAKEN if name in prompt}
    effort = prompt.get("reasoning_effort")
    if effort is not None:
        # A call gives its template these two; `/tokenize` takes no effort.
        given = request.get("chat_template_kwargs") or {}
        request["chat_template_kwargs"] = {
            "reasoning_effort": effort,
            "enable_thinking": effort != "none",
        } | given
    return request


def read_count(answer: Any) -> bytes:  # noqa: ANN401  JSON
    """The client's body; RefusedError, of status 502, if the upstream's answer has no count."""
    count = answer.get("count") if isinstance(answer, dict) else None
    if not isinstance(count, int) or isinstance(count, bool):
        raise RefusedError(
            Problem(502, "the upstream's answer to /tokenize has no count", "upstream_invalid")
        )
    return orjson.dumps({"input_tokens": count})
