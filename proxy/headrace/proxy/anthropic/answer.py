"""A chat completion's answer, as a message, and the parts that a streamed one shares with it. Pure."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from headrace.proxy.dialect import Json
from headrace.schemas.ids import uuid7

UNSIGNED = "unsigned"
"""As a thinking block's signature: the API's libraries want one, and some leave out thinking without. Nothing
here signs, and nothing checks it when it comes back."""

INVALID_JSON = "invalid_json"
"""The one member of a tool's input when the model's arguments are no JSON object, as when `max_tokens` cut
them: its value is what the model wrote. The tool refuses it, the model is told, and nothing half-read is run.
Anthropic's guide to fine-grained tool streaming wraps them alike."""


class ToolUse(NamedTuple):
    id: str
    name: str
    arguments: str
    """A JSON object, in the model's own words where they are one."""
    is_valid: bool

    def block(self) -> Json:
        return self.head() | {"input": orjson.Fragment(self.arguments)}

    def head(self) -> Json:
        """As a stream opens it."""
        return {"type": "tool_use", "id": self.id, "name": self.name, "input": {}}


class Ending(NamedTuple):
    finish_reason: str | None
    matched: Any
    """vLLM's `stop_reason`: the stop string that was hit, or a token's id."""
    is_refusal: bool = False

    def stop(self, calls: Sequence[ToolUse]) -> Json:
        """`stop_reason` and `stop_sequence`.

        A call that a stop string has cut is not one to run, so the string is told; a call that is whole is,
        also where a forced choice makes the upstream say `stop`.
        """
        reason, sequence = "end_turn", None
        if self.is_refusal or self.finish_reason == "content_filter":
            reason = "refusal"
        elif self.finish_reason not in _WHOLE:
            # `length`, and what an engine has cut short for its own reasons.
            reason = "max_tokens"
        elif isinstance(self.matched, str) and not (calls and all(call.is_valid for call in calls)):
            reason, sequence = "stop_sequence", self.matched
        elif calls:
            reason = "tool_use"
        return {"stop_reason": reason, "stop_sequence": sequence}


_WHOLE = frozenset({None, "stop", "tool_calls", "function_call"})
"""Some servers give no reason for an ordinary end."""


def message_of(completion: Json, model: str) -> Json:
    """The whole message; `model` is for an upstream that does not name its own."""
    choice = _first(completion)
    message = choice.get("message") or {}
    calls = read_calls(message.get("tool_calls"))
    content: list[Json] = []
    if thought := thought_in(message):
        content.append(thinking_block(thought, UNSIGNED))
    if text := text_in(message):
        content.append(text_block(text))
    content += [call.block() for call in calls]
    ending = Ending(choice.get("finish_reason"), choice.get("stop_reason"), bool(message.get("refusal")))
    return (
        head_of(completion, model)
        | {"content": content or [text_block("")]}
        | ending.stop(calls)
        | {"usage": usage_of(completion.get("usage"))}
    )


def head_of(payload: Json, model: str) -> Json:
    """The members that an answer and the first chunk of one both give, with nothing said yet."""
    return {
        "id": payload.get("id") or f"msg_{uuid7()}",
        "type": "message",
        "role": "assistant",
        "model": payload.get("model") or model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage_of(payload.get("usage")),
    }


def usage_of(usage: Any) -> Json:  # noqa: ANN401  JSON
    """Counts are 0 where the upstream gave none: the API has no word for unknown.

    Input tokens are those that did not come from the cache, as the API counts.
    """
    usage = usage if isinstance(usage, dict) else {}
    details = usage.get("prompt_tokens_details")
    details = details if isinstance(details, dict) else {}
    cached = {
        name: details[member]
        for name, member in (
            ("cache_read_input_tokens", "cached_tokens"),
            ("cache_creation_input_tokens", "created_cache_tokens"),
        )
        if isinstance(details.get(member), int)
    }
    num_input = (usage.get("prompt_tokens") or 0) - sum(cached.values())
    return {"input_tokens": max(num_input, 0), "output_tokens": usage.get("completion_tokens") or 0} | cached


def read_calls(calls: Any) -> list[ToolUse]:  # noqa: ANN401  JSON
    return [_read_call(call) for call in calls or () if isinstance(call, dict)]


def thought_in(message: Json) -> str:
    """Of a message or a delta. Upstreams differ in the name, and some give both."""
    return message.get("reasoning") or message.get("reasoning_content") or ""


def text_in(message: Json) -> str:
    """With the words of a refusal, for which the API has no place of their own."""
    return "".join(value for name in ("content", "refusal") if isinstance(value := message.get(name), str))


def text_block(text: str) -> Json:
    return {"type": "text", "text": text}


def thinking_block(thinking: str, signature: str) -> Json:
    return {"type": "thinking", "thinking": thinking, "signature": signature}


def _first(completion: Json) -> Json:
    choices = completion.get("choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}


def _read_call(call: Json) -> ToolUse:
    function = call.get("function") or {}
    arguments = function.get("arguments") or "{}"
    if not isinstance(arguments, str):
        arguments = orjson.dumps(arguments).decode()
    is_valid = _is_object(arguments)
    if not is_valid:
        arguments = orjson.dumps({INVALID_JSON: arguments}).decode()
    return ToolUse(call.get("id") or f"toolu_{uuid7()}", function.get("name") or "", arguments, is_valid)


def _is_object(text: str) -> bool:
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False
