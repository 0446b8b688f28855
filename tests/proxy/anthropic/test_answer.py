from typing import Any

import orjson
import pytest
from anthropic.types import Message
from tests.proxy.anthropic.official import BODY, call, completion, create

from headrace.proxy.anthropic import MESSAGES
from headrace.proxy.anthropic.answer import usage_of
from headrace.proxy.dialect import Json


def told(answer: Json) -> Json:
    """As JSON, after the official model and client have read it."""
    body = MESSAGES.open(BODY).answer(answer)
    assert create(200, body) == Message.model_validate_json(body)
    value: Json = orjson.loads(body)
    return value


def test_the_whole_message() -> None:
    assert told(completion({"content": "hello"})) == {
        "id": "chatcmpl-1",
        "type": "message",
        "role": "assistant",
        "model": "m-1",
        "content": [{"type": "text", "text": "hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 12, "output_tokens": 7},
    }


USE = {"type": "tool_use", "id": "call_1", "name": "look", "input": {"x": 1}}
TEXT = {"type": "text", "text": "hello"}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "unsigned"}


@pytest.mark.parametrize(
    ("message", "content"),
    [
        pytest.param({"content": None}, [{"type": "text", "text": ""}], id="nothing"),
        pytest.param({"content": " hello\n"}, [{"type": "text", "text": " hello\n"}], id="blanks kept"),
        pytest.param({"content": "hello", "reasoning": "hm"}, [THOUGHT, TEXT], id="thinking"),
        pytest.param(
            {"content": "hello", "reasoning": "hm", "reasoning_content": "hm"},
            [THOUGHT, TEXT],
            id="told twice",
        ),
        pytest.param({"content": None, "reasoning_content": "hm"}, [THOUGHT], id="nothing but thinking"),
        pytest.param({"content": None, "refusal": "hello"}, [TEXT], id="refusal's words"),
        pytest.param({"content": "hello", "tool_calls": [call()]}, [TEXT, USE], id="text and a call"),
        pytest.param(
            {"content": "", "tool_calls": [call(), call(id="call_2")]},
            [USE, USE | {"id": "call_2"}],
            id="calls",
        ),
    ],
)
def test_content(message: Json, content: list[Json]) -> None:
    assert told(completion(message))["content"] == content


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param('{"a": [1, {"b": null}]}', {"a": [1, {"b": None}]}, id="object"),
        pytest.param("", {}, id="none"),
        pytest.param('{"a": "cut', {"invalid_json": '{"a": "cut'}, id="cut"),
        pytest.param('{a: "é"}', {"invalid_json": '{a: "é"}'}, id="no JSON"),
        pytest.param('{"a": NaN}', {"invalid_json": '{"a": NaN}'}, id="no number"),
        pytest.param("[1]", {"invalid_json": "[1]"}, id="no object"),
    ],
)
def test_what_a_model_wrote_as_arguments_is_not_lost(arguments: str, expected: Json) -> None:
    answer = completion({"content": None, "tool_calls": [call(arguments=arguments)]}, "tool_calls")
    assert told(answer)["content"][0]["input"] == expected


def test_numbers_stay_as_the_model_wrote_them() -> None:
    answer = completion({"tool_calls": [call(arguments='{"x": 123456789012345678901234567890}')]})
    assert b'{"x": 123456789012345678901234567890}' in MESSAGES.open(BODY).answer(answer)


CALLS: Json = {"tool_calls": [call()]}
CUT: Json = {"tool_calls": [call(arguments='{"x": ')]}


@pytest.mark.parametrize(
    ("message", "finish_reason", "matched", "expected"),
    [
        pytest.param({}, "stop", None, ("end_turn", None), id="stop"),
        pytest.param({}, "stop", 151645, ("end_turn", None), id="a stop token"),
        pytest.param({}, "stop", "END", ("stop_sequence", "END"), id="a stop string"),
        pytest.param({}, "length", None, ("max_tokens", None), id="length"),
        pytest.param({}, "content_filter", None, ("refusal", None), id="filter"),
        pytest.param({"refusal": "no"}, "stop", None, ("refusal", None), id="refusal"),
        pytest.param({}, None, None, ("end_turn", None), id="no reason"),
        pytest.param({}, "abort", None, ("max_tokens", None), id="cut by the engine"),
        pytest.param(CALLS, "tool_calls", None, ("tool_use", None), id="calls"),
        pytest.param({}, "tool_calls", None, ("end_turn", None), id="calls that are not there"),
        pytest.param(CALLS, "stop", None, ("tool_use", None), id="a forced call"),
        pytest.param(CALLS, "stop", "END", ("tool_use", None), id="a whole call and a stop string"),
        pytest.param(CUT, "stop", "END", ("stop_sequence", "END"), id="a call cut by a stop string"),
        pytest.param(CUT, "tool_calls", None, ("tool_use", None), id="a call of bad JSON"),
        pytest.param(CUT, "length", None, ("max_tokens", None), id="a call cut by length"),
    ],
)
def test_why_it_stopped(
    message: Json, finish_reason: str | None, matched: Any, expected: tuple[str, Any]
) -> None:
    answer = told(completion(message, finish_reason, stop_reason=matched))
    assert (answer["stop_reason"], answer["stop_sequence"]) == expected


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        pytest.param(None, {"input_tokens": 0, "output_tokens": 0}, id="none"),
        pytest.param({"prompt_tokens": 5}, {"input_tokens": 5, "output_tokens": 0}, id="half"),
        pytest.param(
            {"prompt_tokens": 50, "completion_tokens": 2, "prompt_tokens_details": None},
            {"input_tokens": 50, "output_tokens": 2},
            id="without details",
        ),
        pytest.param(
            {"prompt_tokens": 50, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 48}},
            {"input_tokens": 2, "output_tokens": 2, "cache_read_input_tokens": 48},
            id="cached",
        ),
        pytest.param(
            {"prompt_tokens": 50, "prompt_tokens_details": {"cached_tokens": 32, "created_cache_tokens": 16}},
            {
                "input_tokens": 2,
                "output_tokens": 0,
                "cache_read_input_tokens": 32,
                "cache_creation_input_tokens": 16,
            },
            id="cached and created",
        ),
    ],
)
def test_usage(usage: Json | None, expected: Json) -> None:
    assert usage_of(usage) == expected


def test_an_answer_of_no_choices_is_still_a_message() -> None:
    answer = told({"choices": []})
    assert answer["id"].startswith("msg_")
    assert answer["model"] == "m"
    assert answer["content"] == [{"type": "text", "text": ""}]
