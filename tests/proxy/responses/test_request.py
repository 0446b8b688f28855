import pytest
from tests.proxy.responses.official import BODY, WEATHER, dialect

from headrace.proxy.dialect import Json
from headrace.proxy.problem import RefusedError

NESTED: Json = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object"}, "strict": True},
}
SCHEMA: Json = {"type": "object", "properties": {}}
FORMAT: Json = {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        pytest.param({}, {}, id="least"),
        pytest.param({"max_output_tokens": 9}, {"max_completion_tokens": 9}, id="max_output_tokens"),
        pytest.param(
            {"temperature": 0.5, "top_p": 0.9, "user": "u", "metadata": {"a": "b"}},
            {"temperature": 0.5, "top_p": 0.9, "user": "u", "metadata": {"a": "b"}},
            id="same in both",
        ),
        pytest.param(
            {"seed": 3, "top_k": 5, "stop": ["."], "new_member": {"x": 1}},
            {"seed": 3, "top_k": 5, "stop": ["."], "new_member": {"x": 1}},
            id="unknown",
        ),
        pytest.param({"stream": False, "stream_options": {}}, {"stream": False}, id="no stream"),
        pytest.param(
            {"stream": True, "stream_options": {"include_obfuscation": False}},
            {"stream": True, "stream_options": {"include_usage": True}},
            id="stream",
        ),
        pytest.param(
            {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False},
            {"tools": [NESTED], "tool_choice": "required", "parallel_tool_calls": False},
            id="tools",
        ),
        pytest.param(
            {"tools": [WEATHER], "tool_choice": {"type": "function", "name": "weather"}},
            {"tools": [NESTED], "tool_choice": {"type": "function", "function": {"name": "weather"}}},
            id="one tool",
        ),
        pytest.param(
            {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
            {},
            id="no tools, which upstreams refuse as a list",
        ),
        pytest.param({"tool_choice": "required"}, {"tool_choice": "required"}, id="the upstream's to refuse"),
        pytest.param(
            {"include": ["message.output_text.logprobs"], "top_logprobs": 3},
            {"logprobs": True, "top_logprobs": 3},
            id="logprobs",
        ),
        pytest.param(
            {"include": ["reasoning.encrypted_content", "file_search_call.results"], "top_logprobs": 3},
            {},
            id="includes of nothing that comes",
        ),
        pytest.param(
            {"text": {"format": FORMAT, "verbosity": "low"}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
                },
                "verbosity": "low",
            },
            id="json schema",
        ),
        pytest.param(
            {"text": {"format": {"type": "json_object"}}},
            {"response_format": {"type": "json_object"}},
            id="json object",
        ),
        pytest.param({"text": {"format": {"type": "text"}}}, {}, id="text"),
        pytest.param(
            {"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}, id="effort"
        ),
        pytest.param(
            {"store": False, "truncation": "auto", "background": False, "conversation": None, "prompt": None},
            {},
            id="ours",
        ),
    ],
)
def test_a_request_in_the_words_of_chat(more: Json, expected: Json) -> None:
    messages = [{"role": "user", "content": "hi"}]
    assert dialect().open(BODY | more).request == {"model": "m", "messages": messages} | expected


def test_a_custom_tool_is_a_function_of_one_string() -> None:
    tool = {"type": "custom", "name": "shell", "description": "Runs it.", "format": {"type": "text"}}
    choice = {"type": "custom", "name": "shell"}
    request = dialect().open(BODY | {"tools": [tool], "tool_choice": choice}).request
    function = request["tools"][0]["function"]
    assert (function["name"], function["description"]) == ("shell", "Runs it.")
    assert function["parameters"]["properties"] == {"input": {"type": "string"}}
    assert request["tool_choice"] == {"type": "function", "function": {"name": "shell"}}


@pytest.mark.parametrize(
    ("more", "param", "words"),
    [
        pytest.param({"background": True}, "background", "not supported", id="background"),
        pytest.param({"conversation": "conv_1"}, "conversation", "previous_response_id", id="conversation"),
        pytest.param({"prompt": {"id": "p"}}, "prompt", "instructions", id="prompt"),
        pytest.param({"context_management": [{}]}, "context_management", "not compacted", id="compaction"),
        pytest.param({"n": 2}, "n", "one answer", id="n"),
        *(
            pytest.param(
                {"tools": [WEATHER, {"type": kind}]}, "tools[1].type", "only functions", id=f"tool {kind}"
            )
            for kind in ("web_search", "file_search", "computer", "mcp", "code_interpreter", "namespace")
        ),
        pytest.param({"tools": {}}, "tools", "list", id="tools"),
        pytest.param({"tools": [{"type": "function"}]}, "tools[0].name", "string", id="nameless"),
        pytest.param(
            {"tools": [{"type": "custom", "name": "c", "format": {"type": "grammar"}}]},
            "tools[0].format",
            "grammar",
            id="grammar",
        ),
        pytest.param({"tool_choice": "any"}, "tool_choice", "required", id="choice"),
        pytest.param({"tool_choice": {"type": "web_search"}}, "tool_choice", "function", id="hosted choice"),
        pytest.param({"text": {"format": {"type": "xml"}}}, "text.format.type", "json", id="format"),
        pytest.param({"text": "x"}, "text", "object", id="text"),
        pytest.param({"reasoning": "low"}, "reasoning", "object", id="reasoning"),
        pytest.param({"metadata": []}, "metadata", "object", id="metadata"),
        pytest.param({"include": "x"}, "include", "list", id="include"),
        pytest.param({"instructions": ["x"]}, "instructions", "string", id="instructions"),
        pytest.param({"input": None}, "input", "list", id="no input"),
        pytest.param({"input": []}, "input", "list", id="empty input"),
        pytest.param({"input": ["x"]}, "input[0]", "object", id="input of strings"),
        pytest.param(
            {"previous_response_id": "resp_x"}, "previous_response_id", "unknown", id="unknown response"
        ),
        pytest.param({"previous_response_id": 7}, "previous_response_id", "unknown", id="no id"),
    ],
)
def test_what_a_chat_can_not_give_is_refused(more: Json, param: str, words: str) -> None:
    with pytest.raises(RefusedError, match=words) as refused:
        dialect().open(BODY | more)
    assert (refused.value.problem.status, refused.value.problem.param) == (400, param)


@pytest.mark.parametrize(
    "more",
    [
        {"input": ["s3cret"]},
        {"input": [{"role": "user", "content": [{"type": "text", "text": ["s3cret"]}]}]},
        {"instructions": ["s3cret"]},
        {"metadata": "s3cret"},
        {"text": "s3cret"},
        {"tool_choice": {"s3cret": 1}},
        {"tools": ["s3cret"]},
        {"previous_response_id": "s3cret"},
    ],
    ids=lambda more: next(iter(more)),
)
def test_a_refusal_quotes_nothing_that_was_said(more: Json) -> None:
    with pytest.raises(RefusedError) as refused:
        dialect().open(BODY | more)
    assert "s3cret" not in str(refused.value)
