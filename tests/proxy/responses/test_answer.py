from typing import Any

import orjson
import pytest
from openai.types.responses import (
    ResponseCustomToolCall,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseReasoningItem,
)
from tests.proxy.responses.official import (
    AN_ID,
    BODY,
    HEX,
    WEATHER,
    answered,
    call,
    completion,
    dialect,
)

from headrace.proxy.problem import Problem
from headrace.proxy.responses import ResponsesDialect, ResponseStore


def test_a_text() -> None:
    response = answered(completion({"content": "Hello."}))
    message = response.output[0]
    assert isinstance(message, ResponseOutputMessage)
    assert response.output_text == "Hello."
    assert (response.id, message.id) == (f"resp_{HEX}", f"msg_{HEX}0000")
    assert (response.status, message.status) == ("completed", "completed")
    assert (response.created_at, response.model) == (1_700_000_000, "m-1")
    assert response.usage is not None
    assert response.usage.to_dict() == {
        "input_tokens": 12,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 19,
    }


def test_everything_at_once() -> None:
    response = answered(
        completion(
            {"reasoning": "hm", "content": "Let me look.", "tool_calls": [call(), call("call_2")]},
            "tool_calls",
        ),
        tools=[WEATHER],
    )
    reasoning, message, first, second = response.output
    assert isinstance(reasoning, ResponseReasoningItem)
    assert [part.text for part in reasoning.content or []] == ["hm"]
    assert isinstance(message, ResponseOutputMessage)
    assert isinstance(first, ResponseFunctionToolCall)
    assert isinstance(second, ResponseFunctionToolCall)
    assert (first.call_id, first.name, first.arguments) == ("call_1", "weather", '{"city": "Oslo"}')
    assert (first.status, second.call_id) == ("completed", "call_2")
    assert response.status == "completed"


@pytest.mark.parametrize(
    "message",
    [
        {"reasoning": "hm", "content": "x"},
        {"reasoning_content": "hm", "content": "x"},
        {"reasoning": "hm", "reasoning_content": "hm", "content": "x"},
    ],
    ids=["new name", "old name", "both"],
)
def test_reasoning_under_either_name(message: dict[str, str]) -> None:
    item = answered(completion(message)).output[0]
    assert isinstance(item, ResponseReasoningItem)
    assert [part.text for part in item.content or []] == ["hm"]


@pytest.mark.parametrize(
    ("finish_reason", "status", "reason", "item_status"),
    [
        pytest.param("stop", "completed", None, "completed", id="stop"),
        pytest.param(None, "completed", None, "completed", id="none"),
        pytest.param("length", "incomplete", "max_output_tokens", "incomplete", id="length"),
        pytest.param("content_filter", "incomplete", "content_filter", "incomplete", id="filter"),
        pytest.param("abort", "incomplete", None, "incomplete", id="vLLM's own"),
    ],
)
def test_how_it_ended(finish_reason: str | None, status: str, reason: str | None, item_status: str) -> None:
    response = answered(completion({"content": "x"}, finish_reason))
    message = response.output[0]
    assert isinstance(message, ResponseOutputMessage)
    assert (response.status, message.status) == (status, item_status)
    assert (response.incomplete_details is not None) == (status == "incomplete")
    assert reason == (response.incomplete_details and response.incomplete_details.reason)


def test_cut_within_a_call_the_text_before_it_is_whole() -> None:
    message = {"content": "x", "tool_calls": [call(), call("call_2", arguments='{"ci')]}
    text, first, second = answered(completion(message, "length")).output
    assert isinstance(text, ResponseOutputMessage)
    assert isinstance(first, ResponseFunctionToolCall)
    assert isinstance(second, ResponseFunctionToolCall)
    assert [text.status, first.status, second.status] == ["completed", "completed", "incomplete"]
    assert second.arguments == '{"ci'


def test_an_empty_answer_is_an_empty_message() -> None:
    response = answered(completion({"content": ""}))
    assert len(response.output) == 1
    assert response.output_text == ""


def test_a_refusal() -> None:
    message = answered(completion({"refusal": "No."})).output[0]
    assert isinstance(message, ResponseOutputMessage)
    assert message.content[0].to_dict() == {"type": "refusal", "refusal": "No."}


@pytest.mark.parametrize(
    ("arguments", "given"),
    [('{"input": "ls -l"}', "ls -l"), ("ls -l", "ls -l"), ('{"cmd": 1}', '{"cmd": 1}')],
    ids=["in form", "bare", "another form"],
)
def test_a_custom_tool(arguments: str, given: str) -> None:
    answer = completion({"tool_calls": [call(name="shell", arguments=arguments)]}, "tool_calls")
    item = answered(answer, tools=[{"type": "custom", "name": "shell"}]).output[0]
    assert isinstance(item, ResponseCustomToolCall)
    assert (item.call_id, item.name, item.input) == ("call_1", "shell", given)


@pytest.mark.parametrize("call_id", [None, "", "call_1"], ids=["none", "empty", "twice the same"])
def test_each_call_has_an_id_of_its_own(call_id: str | None) -> None:
    response = answered(completion({"tool_calls": [call(), call(call_id)]}, "tool_calls"))
    ids = [item.call_id for item in response.output if isinstance(item, ResponseFunctionToolCall)]
    assert ids == ["call_1", f"call_{HEX}0001"]


def test_logprobs() -> None:
    token = {"token": "é", "logprob": -0.5, "bytes": None}
    logprobs = {"content": [token | {"top_logprobs": [token | {"bytes": [195, 169]}]}]}
    answer = completion({"content": "é"}, logprobs=logprobs)
    response = answered(answer, include=["message.output_text.logprobs"], top_logprobs=1)
    message = response.output[0]
    assert isinstance(message, ResponseOutputMessage)
    text = message.content[0]
    assert isinstance(text, ResponseOutputText)
    whole = {"token": "é", "bytes": [195, 169], "logprob": -0.5}
    assert [each.to_dict() for each in text.logprobs or []] == [whole | {"top_logprobs": [whole]}]
    assert response.top_logprobs == 1


def test_a_response_says_what_was_asked() -> None:
    asked: dict[str, Any] = {
        "instructions": "be brief",
        "max_output_tokens": 9,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "reasoning": {"effort": "low"},
        "store": False,
        "temperature": 0.5,
        "text": {"format": {"type": "json_object"}},
        "tool_choice": "required",
        "tools": [WEATHER],
        "top_p": 0.9,
        "user": "u",
    }
    response = orjson.loads(dialect().open(BODY | asked).answer(completion({"content": "x"})))
    assert {name: response[name] for name in asked} == asked


def test_verbosity_alone_leaves_the_format_as_it_was() -> None:
    response = answered(completion({"content": "x"}), text={"verbosity": "low"})
    assert response.text is not None
    assert response.text.to_dict() == {"format": {"type": "text"}, "verbosity": "low"}


def test_without_usage_none_is_made_up() -> None:
    answer = completion({"content": "x"})
    del answer["usage"]
    assert answered(answer).usage is None


def test_an_answer_without_choices_has_failed_and_is_not_kept() -> None:
    store = ResponseStore()
    response = orjson.loads(dialect(store).open(BODY).answer(completion({}) | {"choices": []}))
    assert (response["status"], response["error"]["code"], response["output"]) == (
        "failed",
        "server_error",
        [],
    )
    assert len(store) == 0


def test_where_the_upstream_says_no_time_the_ids_does() -> None:
    answer = completion({"content": "x"})
    del answer["created"], answer["model"]
    response = answered(answer)
    assert response.created_at == int(AN_ID.replace("-", "")[:12], 16) // 1000
    assert response.model == "m"


def test_an_upstreams_error_is_left_as_it_is() -> None:
    body = b'{"error": {"message": "m"}}'
    assert dialect().upstream_error(502, body) == body


@pytest.mark.parametrize(
    ("body", "message"),
    [(b"<html>", "<html>"), (b"", "the upstream answered 502 and said nothing")],
    ids=["a page", "nothing"],
)
def test_an_upstreams_error_that_is_no_json_is_told_as_json(body: bytes, message: str) -> None:
    error = orjson.loads(dialect().upstream_error(502, body))["error"]
    assert error == {"message": message, "type": "server_error", "param": None, "code": "upstream_error"}


def test_errors_are_in_openais_shape() -> None:
    error = orjson.loads(dialect().error(Problem(400, "no", "invalid_request", param="input")))["error"]
    assert error == {
        "message": "no",
        "type": "invalid_request_error",
        "param": "input",
        "code": "invalid_request",
    }


def test_ids_of_responses_differ() -> None:
    real = ResponsesDialect(ResponseStore())
    ids = {orjson.loads(real.open(BODY).answer(completion({"content": "x"})))["id"] for _ in range(3)}
    assert len(ids) == 3
