"""Deltas of a streamed answer, merged into what the answer would have been in one piece. Pure."""

from typing import Any

from headrace.proxy.dialect import Json

_JOINED = frozenset({"content", "reasoning", "reasoning_content", "refusal"})
"""Members of a message that come in pieces of text."""


def merge_delta(message: Json, delta: Json) -> None:
    """Take a delta of `choices[].delta` into the message. Of members that aren't text the last counts."""
    for name, value in delta.items():
        if value is None:
            message.setdefault(name, None)
        elif name == "tool_calls":
            _merge_tool_calls(message, value)
        elif name in _JOINED and isinstance(value, str):
            message[name] = (message.get(name) or "") + value
        else:
            message[name] = value


def ordered_tool_calls(message: Json) -> Json:
    """The message with its tool calls in order, without the indices that only a stream has."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    ordered = sorted(calls, key=lambda call: call.get("index") or 0)
    return message | {
        "tool_calls": [{key: value for key, value in call.items() if key != "index"} for call in ordered]
    }


def _merge_tool_calls(message: Json, deltas: Any) -> None:  # noqa: ANN401  JSON
    calls = message.get("tool_calls")
    if calls is None:
        calls = message["tool_calls"] = []
    for delta in deltas if isinstance(deltas, list) else ():
        if not isinstance(delta, dict):
            continue
        index = delta.get("index", len(calls))
        call = next((each for each in calls if each.get("index") == index), None)
        if call is None:
            call = {"index": index}
            calls.append(call)
        for name, value in delta.items():
            if name == "function" and isinstance(value, dict):
                _merge_function(call.setdefault("function", {}), value)
            elif name != "index" and value is not None:
                call[name] = value


def _merge_function(function: Json, delta: Json) -> None:
    for name, value in delta.items():
        if name == "arguments" and isinstance(value, str):
            function[name] = function.get(name, "") + value
        elif value is not None:
            function[name] = value
