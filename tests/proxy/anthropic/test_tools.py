from typing import Any

import pytest

from headrace.proxy.anthropic.tools import read_tool_choice, read_tools
from headrace.proxy.dialect import Json
from headrace.proxy.problem import RefusedError

SCHEMA: Json = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}


@pytest.mark.parametrize(
    ("tool", "function"),
    [
        pytest.param({"name": "f", "input_schema": SCHEMA}, {"name": "f", "parameters": SCHEMA}, id="least"),
        pytest.param(
            {"name": "f", "input_schema": SCHEMA, "type": "custom", "description": "d", "strict": True},
            {"name": "f", "parameters": SCHEMA, "description": "d", "strict": True},
            id="most",
        ),
        pytest.param(
            {
                "name": "f",
                "input_schema": SCHEMA,
                "cache_control": {"type": "ephemeral"},
                "defer_loading": True,
            },
            {"name": "f", "parameters": SCHEMA},
            id="wishes left out",
        ),
        pytest.param(
            {"name": "f", "input_schema": {}},
            {"name": "f", "parameters": {"type": "object"}},
            id="no arguments",
        ),
    ],
)
def test_tools(tool: Json, function: Json) -> None:
    assert read_tools([tool]) == [{"type": "function", "function": function}]


def test_no_tools() -> None:
    assert read_tools(None) == read_tools([]) == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(None, {}, id="none given"),
        pytest.param({"type": "auto"}, {"tool_choice": "auto"}, id="auto"),
        pytest.param({"type": "any"}, {"tool_choice": "required"}, id="any"),
        pytest.param({"type": "none"}, {"tool_choice": "none"}, id="none"),
        pytest.param(
            {"type": "tool", "name": "f"},
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
            id="tool",
        ),
        pytest.param(
            {"type": "auto", "disable_parallel_tool_use": True},
            {"tool_choice": "auto", "parallel_tool_calls": False},
            id="one at a time",
        ),
        pytest.param(
            {"type": "any", "disable_parallel_tool_use": False},
            {"tool_choice": "required", "parallel_tool_calls": True},
            id="many at a time",
        ),
    ],
)
def test_tool_choice(given: Any, expected: Json) -> None:
    assert read_tool_choice(given) == expected


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        pytest.param({}, "tools", id="no list"),
        pytest.param(["f"], "tools.0", id="no object"),
        pytest.param(
            [{"type": "web_search_20250305", "name": "web_search"}], "tools.0.type", id="server tool"
        ),
        pytest.param([{"type": "bash_20250124", "name": "bash"}], "tools.0.type", id="Anthropic's form"),
        pytest.param([{"input_schema": SCHEMA}], "tools.0.name", id="no name"),
        pytest.param([{"name": "f"}], "tools.0.input_schema", id="no schema"),
    ],
)
def test_refused_tools(tools: Any, param: str) -> None:
    with pytest.raises(RefusedError) as refused:
        read_tools(tools)
    assert refused.value.problem.param == param


@pytest.mark.parametrize(
    ("given", "param"),
    [
        pytest.param("auto", "tool_choice", id="no object"),
        pytest.param({"type": "required"}, "tool_choice.type", id="type"),
        pytest.param({"type": "tool"}, "tool_choice.name", id="no name"),
        pytest.param(
            {"type": "auto", "disable_parallel_tool_use": "yes"},
            "tool_choice.disable_parallel_tool_use",
            id="no boolean",
        ),
    ],
)
def test_refused_tool_choice(given: Any, param: str) -> None:
    with pytest.raises(RefusedError) as refused:
        read_tool_choice(given)
    assert refused.value.problem.param == param
