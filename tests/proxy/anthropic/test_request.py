from typing import Any

import pytest
from tests.proxy.anthropic.official import BODY

from headrace.proxy.anthropic.request import to_chat
from headrace.proxy.dialect import Json
from headrace.proxy.problem import RefusedError

SCHEMA: Json = {"type": "object", "properties": {}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        pytest.param({}, {}, id="least"),
        pytest.param(
            {"temperature": 0.5, "top_p": 0.9, "top_k": 5},
            {"temperature": 0.5, "top_p": 0.9, "top_k": 5},
            id="sampling",
        ),
        pytest.param({"stop_sequences": ["END"]}, {"stop": ["END"]}, id="stop"),
        pytest.param({"stop_sequences": []}, {}, id="no stop"),
        pytest.param({"metadata": {"user_id": "u"}}, {"user": "u"}, id="user"),
        pytest.param({"metadata": {}}, {}, id="no user"),
        pytest.param(
            {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}, id="stream"
        ),
        pytest.param(
            {"stream": False, "stream_options": {"include_usage": True}}, {"stream": False}, id="no stream"
        ),
        pytest.param(
            {"tools": [{"name": "f", "input_schema": SCHEMA}], "tool_choice": {"type": "any"}},
            {
                "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
                "tool_choice": "required",
            },
            id="tools",
        ),
        pytest.param({"tools": []}, {}, id="no tools, which upstreams refuse as a list"),
        pytest.param(
            {
                "cache_control": {"type": "ephemeral"},
                "service_tier": "auto",
                "context_management": {"edits": []},
            },
            {},
            id="wishes left out",
        ),
        pytest.param(
            {"thinking": {"type": "enabled", "budget_tokens": 1024}},
            {"thinking_token_budget": 1024},
            id="thinking",
        ),
        pytest.param({"thinking": {"type": "adaptive"}}, {}, id="thinking as it likes"),
        pytest.param(
            {"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}},
            {"reasoning_effort": "none"},
            id="no thinking",
        ),
        pytest.param(
            {"output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}}},
            {
                "reasoning_effort": "low",
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "output", "schema": SCHEMA, "strict": True},
                },
            },
            id="form of the output",
        ),
        pytest.param(
            {"seed": 7, "min_p": 0.1, "return_token_ids": True, "n": 1, "mcp_servers": []},
            {"seed": 7, "min_p": 0.1, "return_token_ids": True, "n": 1},
            id="an upstream's own",
        ),
    ],
)
def test_requests(more: Json, expected: Json) -> None:
    assert to_chat(BODY | more) == BODY | expected


def test_an_answer_goes_on_from_the_assistants_words() -> None:
    begun = [*BODY["messages"], {"role": "assistant", "content": "The answer is ("}]
    request = to_chat(BODY | {"messages": begun})
    assert request["messages"] == begun
    assert (request["continue_final_message"], request["add_generation_prompt"]) == (True, False)


def test_a_request_is_left_as_it_was() -> None:
    body = BODY | {"stream": True, "system": "s", "stop_sequences": ["x"]}
    before = repr(body)
    request = to_chat(body)
    request["stream_options"]["more"] = 1
    request["messages"].append({})
    assert repr(body) == before


@pytest.mark.parametrize(
    ("more", "param"),
    [
        pytest.param({"max_tokens": None}, "max_tokens", id="no max_tokens"),
        pytest.param({"max_tokens": 0}, "max_tokens", id="max_tokens of 0"),
        pytest.param({"max_tokens": True}, "max_tokens", id="max_tokens no number"),
        pytest.param({"model": None}, "model", id="no model"),
        pytest.param({"n": 2}, "n", id="two answers"),
        pytest.param({"stream": "yes"}, "stream", id="stream"),
        pytest.param({"stop_sequences": "END"}, "stop_sequences", id="stop"),
        pytest.param({"mcp_servers": [{"type": "url"}]}, "mcp_servers", id="MCP servers"),
        pytest.param({"container": "c"}, "container", id="container"),
        pytest.param({"thinking": True}, "thinking", id="thinking"),
        pytest.param({"thinking": {"type": "enabled"}}, "thinking.budget_tokens", id="no budget"),
        pytest.param({"output_config": "low"}, "output_config", id="output_config"),
        pytest.param({"output_config": {"format": {"type": "xml"}}}, "output_config.format", id="format"),
    ],
)
def test_refused(more: dict[str, Any], param: str) -> None:
    with pytest.raises(RefusedError) as refused:
        to_chat(BODY | more)
    assert (refused.value.problem.status, refused.value.problem.param) == (400, param)
