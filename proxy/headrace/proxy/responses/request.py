"""A responses request as a chat request. What only this proxy reads is left out, what is unknown passes."""

from collections.abc import Iterator
from typing import Any

from headrace.proxy import ask
from headrace.proxy.dialect import Json
from headrace.proxy.problem import bad_request
from headrace.proxy.responses.parts import kind_of
from headrace.proxy.responses.tools import tool_members

LOGPROBS = "message.output_text.logprobs"

_OWN = frozenset(
    {
        "background",
        "background_options",
        "context_management",
        "conversation",
        "include",
        "input",
        "instructions",
        "max_output_tokens",
        "max_tool_calls",
        "messages",
        "parallel_tool_calls",
        "previous_response_id",
        "prompt",
        "reasoning",
        "store",
        "stream_options",
        "text",
        "tool_choice",
        "tools",
        "top_logprobs",
        "truncation",
    }
)
_REFUSED = {
    "background": "responses in the background are not supported: send it without, and wait",
    "context_management": "the context is not compacted here",
    "conversation": "conversations are not kept here: use previous_response_id, or send the items",
    "prompt": "prompt templates are not kept here: send instructions and input",
}


def chat_request(body: Json, messages: list[Json]) -> Json:
    """RefusedError for members that ask for what a chat can't give."""
    for member, why in _REFUSED.items():
        if body.get(member):
            raise bad_request(why, member)
    if body.get("n") not in (None, 1):
        raise bad_request("a response has one answer", "n")
    request = {member: value for member, value in body.items() if member not in _OWN}
    request["messages"] = messages
    request.update(tool_members(body))
    request.update(_text_members(body))
    request.update(_sampling_members(body))
    if ask.is_stream(body):
        request["stream_options"] = {"include_usage": True}
    return request


def object_in(body: Json, member: str) -> Json:
    """Empty where it is not there."""
    value = body.get(member)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise bad_request(f"{member} must be an object", member)
    return value


def includes(body: Json, what: str) -> bool:
    """The rest of `include` is of hosted tools, or given anyway: reasoning comes whole, with its item."""
    given = body.get("include")
    if given is not None and not isinstance(given, list):
        raise bad_request("include must be a list", "include")
    return what in (given or ())


def _sampling_members(body: Json) -> Iterator[tuple[str, Any]]:
    if body.get("max_output_tokens") is not None:
        yield "max_completion_tokens", body["max_output_tokens"]
    effort = object_in(body, "reasoning").get("effort")
    if effort is not None:
        yield "reasoning_effort", effort
    if includes(body, LOGPROBS):
        yield "logprobs", True
        if body.get("top_logprobs"):
            yield "top_logprobs", body["top_logprobs"]


def _text_members(body: Json) -> Iterator[tuple[str, Any]]:
    text = object_in(body, "text")
    if text.get("verbosity") is not None:
        yield "verbosity", text["verbosity"]
    form = text.get("format")
    if form is None:
        return
    kind = kind_of(form, "text.format")
    if kind == "json_schema":
        members = ("name", "description", "schema", "strict")
        schema = {member: form[member] for member in members if form.get(member) is not None}
        yield "response_format", {"type": "json_schema", "json_schema": schema}
    elif kind == "json_object":
        yield "response_format", {"type": "json_object"}
    elif kind != "text":
        raise bad_request("format must be of type text, json_object or json_schema", "text.format.type")
