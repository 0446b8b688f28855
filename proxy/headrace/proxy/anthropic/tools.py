"""Tools and the choice among them, as a chat completion's functions. Pure."""

from typing import Any

from headrace.proxy.dialect import Json
from headrace.proxy.problem import bad_request


def read_tools(given: Any) -> list[Json]:  # noqa: ANN401  JSON
    """RefusedError for a tool that Anthropic runs, or whose form only its models know."""
    if given is None:
        return []
    if not isinstance(given, list):
        raise bad_request("a list of tools is expected", "tools")
    return [_function(tool, f"tools.{index}") for index, tool in enumerate(given)]


def read_tool_choice(given: Any) -> Json:  # noqa: ANN401  JSON
    """`tool_choice` and `parallel_tool_calls`, as far as it says something."""
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise bad_request("an object with a type is expected", "tool_choice")
    chosen: Json = {"tool_choice": _choice(given)}
    disabled = given.get("disable_parallel_tool_use")
    if disabled is not None:
        if not isinstance(disabled, bool):
            raise bad_request("true or false is expected", "tool_choice.disable_parallel_tool_use")
        chosen["parallel_tool_calls"] = not disabled
    return chosen


def _choice(given: Json) -> str | Json:
    match given.get("type"):
        case "auto":
            return "auto"
        case "any":
            return "required"
        case "none":
            return "none"
        case "tool":
            name = given.get("name")
            if not isinstance(name, str) or not name:
                raise bad_request("the name of a tool is expected", "tool_choice.name")
            return {"type": "function", "function": {"name": name}}
        case _:
            raise bad_request("auto, any, tool or none is expected", "tool_choice.type")


def _function(tool: Any, where: str) -> Json:  # noqa: ANN401  JSON
    if not isinstance(tool, dict):
        raise bad_request("a tool is an object", where)
    kind = tool.get("type")
    if kind is not None and kind != "custom":
        raise bad_request(
            "only custom tools, with an input_schema, are known here: none that Anthropic defines or runs",
            f"{where}.type",
        )
    name, schema = tool.get("name"), tool.get("input_schema")
    if not isinstance(name, str) or not name:
        raise bad_request("a tool has a name", f"{where}.name")
    if not isinstance(schema, dict):
        raise bad_request("a tool has a JSON schema", f"{where}.input_schema")
    function: Json = {"name": name, "parameters": schema if "type" in schema else {"type": "object"} | schema}
    for optional in ("description", "strict"):
        if tool.get(optional) is not None:
            function[optional] = tool[optional]
    return {"type": "function", "function": function}
