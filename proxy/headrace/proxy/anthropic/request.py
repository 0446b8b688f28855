"""A request of the Messages API, as one for chat completions. Pure.

Members that neither API knows pass through, so that an upstream's own can be used.
"""

from typing import Any

from headrace.proxy.anthropic.conversation import read_conversation
from headrace.proxy.anthropic.tools import read_tool_choice, read_tools
from headrace.proxy.dialect import Json
from headrace.proxy.problem import bad_request

_TRANSLATED = frozenset(
    {"messages", "metadata", "output_config", "stop_sequences", "stream_options", "system", "thinking"}
    | {"tool_choice", "tools"}
)

_WITHOUT_EFFECT = frozenset(
    {"betas", "cache_control", "context_management", "diagnostics", "inference_geo", "service_tier", "speed"}
    | {"user_profile_id", "workspace_id"}
)
"""Wishes about how Anthropic serves and bills: the answer is as good without, and strict upstreams would
refuse the members."""

_REFUSED = {
    "container": "there are no containers here",
    "mcp_servers": "MCP servers are not called from here: give their tools as tools",
}


def to_chat(body: Json) -> Json:
    """The chat completion's body, which shares parts with the given; RefusedError."""
    max_tokens = body.get("max_tokens")
    if not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or max_tokens < 1:
        raise bad_request("a whole number of at least 1 is expected", "max_tokens")
    if body.get("n", 1) != 1:
        raise bad_request("a message is one answer", "n")
    request = to_prompt(body)
    request |= _read_stop(body.get("stop_sequences"))
    metadata = body.get("metadata")
    if isinstance(metadata, dict) and isinstance(metadata.get("user_id"), str):
        request["user"] = metadata["user_id"]
    if _is_stream(body):
        request["stream_options"] = {"include_usage": True}
    return request


def to_prompt(body: Json) -> Json:
    """What of it decides on the prompt, with the members that pass through."""
    for name, why in _REFUSED.items():
        if body.get(name):
            raise bad_request(why, name)
    if not isinstance(body.get("model"), str):
        raise bad_request("the name of a model is expected", "model")
    request = {name: value for name, value in body.items() if name not in _NOT_PASSED}
    chat = read_conversation(body)
    request["messages"] = chat
    if tools := read_tools(body.get("tools")):
        request["tools"] = tools
    request |= read_tool_choice(body.get("tool_choice"))
    request |= _read_output(body.get("output_config"))
    request |= _read_thinking(body.get("thinking"))
    last = chat[-1]
    if last["role"] == "assistant" and last["content"] and "tool_calls" not in last:
        # The answer continues from an assistant's message at the end. vLLM's words for it; another upstream
        # that does not know them answers as it will.
        request = {"continue_final_message": True, "add_generation_prompt": False} | request
    return request


def _is_stream(body: Json) -> bool:
    stream = body.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise bad_request("true or false is expected", "stream")
    return stream is True


def _read_stop(given: Any) -> Json:  # noqa: ANN401  JSON
    if given is None or given == []:
        return {}
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise bad_request("a list of texts is expected", "stop_sequences")
    return {"stop": given}


def _read_output(given: Any) -> Json:  # noqa: ANN401  JSON
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise bad_request("an object is expected", "output_config")
    request: Json = {}
    if given.get("effort") is not None:
        request["reasoning_effort"] = given["effort"]
    form = given.get("format")
    if form is not None:
        if (
            not isinstance(form, dict)
            or form.get("type") != "json_schema"
            or not isinstance(form.get("schema"), dict)
        ):
            raise bad_request("the type json_schema with a schema is expected", "output_config.format")
        schema = {"name": "output", "schema": form["schema"], "strict": True}
        request["response_format"] = {"type": "json_schema", "json_schema": schema}
    return request


def _read_thinking(given: Any) -> Json:  # noqa: ANN401  JSON
    """In the words that vLLM's own Messages API has for it; a model that thinks as it likes needs none."""
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise bad_request("an object with a type is expected", "thinking")
    match given.get("type"):
        case "disabled":
            return {"reasoning_effort": "none"}
        case "enabled":
            budget = given.get("budget_tokens")
            if not isinstance(budget, int) or isinstance(budget, bool):
                raise bad_request("a whole number is expected", "thinking.budget_tokens")
            return {"thinking_token_budget": budget}
        case _:
            return {}


_NOT_PASSED = _TRANSLATED | _WITHOUT_EFFECT | frozenset(_REFUSED)
