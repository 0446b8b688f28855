"""Tools as chat completions have them: functions. A custom tool is a function of one string."""

from collections.abc import Iterator
from typing import Any

import orjson

from headrace.proxy.dialect import Json
from headrace.proxy.problem import bad_request
from headrace.proxy.responses.parts import kind_of, text_in

_CUSTOM_INPUT = "input"
_CUSTOM_PARAMETERS = {
    "type": "object",
    "properties": {_CUSTOM_INPUT: {"type": "string"}},
    "required": [_CUSTOM_INPUT],
    "additionalProperties": False,
}


def tool_members(body: Json) -> Iterator[tuple[str, Any]]:
    """What a request's tools are in a chat request. Without tools nothing that speaks of them is sent."""
    tools = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(_listed(body))]
    choice = _choice(body.get("tool_choice"))
    if tools:
        yield "tools", tools
        if body.get("parallel_tool_calls") is not None:
            yield "parallel_tool_calls", body["parallel_tool_calls"]
    if choice is not None and (tools or choice not in ("auto", "none")):
        yield "tool_choice", choice


def custom_names(body: Json) -> frozenset[str]:
    return frozenset(tool["name"] for tool in _listed(body) if tool["type"] == "custom")


def custom_arguments(text: str) -> str:
    return orjson.dumps({_CUSTOM_INPUT: text}).decode()


def custom_input(arguments: str) -> str:
    """What a custom tool is called with. As it is, where the model did not keep to the form."""
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    given = value.get(_CUSTOM_INPUT) if isinstance(value, dict) else None
    return given if isinstance(given, str) else arguments


def _listed(body: Json) -> list[Any]:
    tools = body.get("tools")
    if tools is None:
        return []
    if not isinstance(tools, list):
        raise bad_request("tools must be a list", "tools")
    return tools


def _tool(tool: Any, where: str) -> Json:  # noqa: ANN401  JSON
    kind = kind_of(tool, where)
    if kind == "function":
        function = {"name": text_in(tool, "name", where)}
        members = ("description", "parameters", "strict")
        function |= {member: tool[member] for member in members if tool.get(member) is not None}
        return {"type": "function", "function": function}
    if kind == "custom":
        return {"type": "function", "function": _custom(tool, where)}
    raise bad_request(
        f"tools of type {kind!r} are not supported: only functions, which the client runs itself",
        f"{where}.type",
    )


def _custom(tool: Json, where: str) -> Json:
    form = tool.get("format")
    if form is not None and kind_of(form, f"{where}.format") != "text":
        raise bad_request("a custom tool's input can't be bound to a grammar here", f"{where}.format")
    function: Json = {"name": text_in(tool, "name", where), "parameters": _CUSTOM_PARAMETERS}
    if tool.get("description") is not None:
        function["description"] = tool["description"]
    return function


def _choice(choice: object) -> str | Json | None:
    if choice is None or (isinstance(choice, str) and choice in {"auto", "none", "required"}):
        return choice
    if isinstance(choice, dict) and choice.get("type") in ("function", "custom"):
        return {"type": "function", "function": {"name": text_in(choice, "name", "tool_choice")}}
    raise bad_request(
        "tool_choice must be auto, none, required, or a function's or custom tool's name", "tool_choice"
    )
