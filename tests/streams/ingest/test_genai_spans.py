import json
from datetime import UTC, datetime
from typing import Any

import pytest

from headrace.schemas.records import Generation
from headrace.schemas.records.span import SpanEvent
from headrace.streams.ingest.bad_input import MalformedError
from headrace.streams.ingest.genai_spans import read_generations

CHAT = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
MESSAGES = [{"role": "user", "parts": [{"type": "text", "content": "hi 🌊"}]}]
ANSWER = {"role": "assistant", "parts": [{"type": "text", "content": "ho"}], "finish_reason": "stop"}


def event(name: str, **attributes: str) -> SpanEvent:
    return SpanEvent(name=name, time=datetime(2026, 9, 1, tzinfo=UTC), attributes=attributes)


def only(attributes: dict[str, str], *events: SpanEvent) -> Generation:
    (generation,) = read_generations(attributes, events)
    return generation


def said(generation: Generation) -> tuple[Any, Any]:
    """Messages in, and answers out."""
    answers = [choice["message"] for choice in json.loads(generation.response).get("choices", [])]
    return json.loads(generation.request).get("messages"), answers


@pytest.mark.parametrize(
    ("attributes", "is_call"),
    [
        ({"gen_ai.operation.name": "chat"}, True),
        ({"gen_ai.operation.name": "text_completion"}, True),
        ({"gen_ai.operation.name": "generate_content"}, True),
        ({"gen_ai.operation.name": "embeddings"}, False),
        ({"gen_ai.operation.name": "execute_tool"}, False),
        ({"gen_ai.operation.name": "invoke_agent", "gen_ai.input.messages": "[]"}, False),
        ({"llm.request.type": "chat"}, True),
        ({"llm.request.type": "completion"}, True),
        ({"llm.request.type": "embedding"}, False),
        ({"http.request.method": "POST"}, False),
    ],
)
def test_which_spans_are_model_calls(attributes: dict[str, str], is_call: bool) -> None:  # noqa: FBT001
    assert bool(read_generations(attributes, ())) == is_call


OLD = {
    "gen_ai.prompt.0.role": "system",
    "gen_ai.prompt.0.content": "brief",
    "gen_ai.prompt.10.role": "user",
    "gen_ai.prompt.10.content": "last",
    "gen_ai.prompt.2.role": "assistant",
    "gen_ai.prompt.2.tool_calls.0.name": "f",
    "gen_ai.prompt.2.tool_calls.0.arguments": "{}",
    "gen_ai.completion.0.role": "assistant",
    "gen_ai.completion.0.content": "ho",
    "gen_ai.completion.0.finish_reason": "stop",
}


@pytest.mark.parametrize(
    ("attributes", "events", "messages", "answers"),
    [
        pytest.param(
            {"gen_ai.input.messages": json.dumps(MESSAGES), "gen_ai.output.messages": json.dumps([ANSWER])},
            [],
            MESSAGES,
            [ANSWER],
            id="attributes",
        ),
        pytest.param(
            {},
            [
                event(
                    "gen_ai.client.inference.operation.details",
                    **{
                        "gen_ai.input.messages": json.dumps(MESSAGES),
                        "gen_ai.output.messages": json.dumps([ANSWER]),
                    },
                )
            ],
            MESSAGES,
            [ANSWER],
            id="details event",
        ),
        pytest.param(
            OLD,
            [],
            [
                {"role": "system", "content": "brief"},
                {"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{}"}]},
                {"role": "user", "content": "last"},
            ],
            [{"role": "assistant", "content": "ho", "finish_reason": "stop"}],
            id="numbered attributes",
        ),
        pytest.param(
            {},
            [
                event("gen_ai.content.prompt", **{"gen_ai.prompt": json.dumps(MESSAGES)}),
                event("gen_ai.content.completion", **{"gen_ai.completion": json.dumps([ANSWER])}),
            ],
            MESSAGES,
            [ANSWER],
            id="content events",
        ),
        pytest.param(
            {},
            [
                event("gen_ai.system.message", **{"gen_ai.system": "openai"}, content="brief"),
                event("gen_ai.user.message", content="17"),
                event("gen_ai.assistant.message", tool_calls='[{"id":"c"}]'),
                event("gen_ai.tool.message", content="x", id="c"),
                event("gen_ai.choice", index="0", finish_reason="stop", message='{"content":"ho"}'),
            ],
            [
                {"role": "system", "content": "brief"},
                {"role": "user", "content": "17"},
                {"role": "assistant", "tool_calls": [{"id": "c"}]},
                {"role": "tool", "content": "x", "id": "c"},
            ],
            [{"content": "ho", "finish_reason": "stop"}],
            id="an event a message",
        ),
        pytest.param(
            {"gen_ai.input.messages": '[{"role":"us', "gen_ai.output.messages": "[]"},
            [],
            '[{"role":"us',
            [],
            id="cut short by a limit",
        ),
        pytest.param({}, [], None, [], id="content not recorded"),
    ],
)
def test_messages_are_found_in_each_form(
    attributes: dict[str, str], events: list[SpanEvent], messages: Any, answers: list[Any]
) -> None:
    generation = only(CHAT | attributes, *events)
    assert said(generation) == (messages, answers)
    assert generation.finish_reason == ("stop" if answers else None)
    assert generation.why_untrainable() == "no_token_ids"


def test_what_is_known_of_a_call() -> None:
    generation = only(
        CHAT
        | {
            "gen_ai.response.model": "m-1",
            "gen_ai.response.id": "r",
            "gen_ai.agent.name": "a",
            "gen_ai.usage.input_tokens": "5",
            "gen_ai.usage.output_tokens": "2",
            "gen_ai.request.temperature": "0.5",
            "gen_ai.request.max_tokens": "9",
            "gen_ai.request.top_p": "NaN",
            "gen_ai.response.finish_reasons": '["length"]',
            "gen_ai.system_instructions": '[{"type":"text","content":"brief"}]',
            "gen_ai.tool.definitions": '[{"name":"f"}]',
            "gen_ai.output.messages": '[{"role":"assistant"}]',
        }
    )
    assert (generation.agent, generation.model) == ("a", "m-1")
    assert (generation.prompt_tokens, generation.completion_tokens) == (5, 2)
    assert generation.sampling == {"temperature": 0.5, "max_tokens": 9.0}
    assert generation.finish_reason == "length"
    assert json.loads(generation.request) == {
        "model": "m",
        "system_instructions": [{"type": "text", "content": "brief"}],
        "tools": [{"name": "f"}],
    }
    assert json.loads(generation.response) == {
        "id": "r",
        "model": "m-1",
        "choices": [{"index": 0, "message": {"role": "assistant"}, "finish_reason": "length"}],
    }


def test_old_names_of_usage_count() -> None:
    old = {"gen_ai.usage.prompt_tokens": "5", "gen_ai.usage.completion_tokens": "2"}
    generation = only(CHAT | old)
    assert (generation.prompt_tokens, generation.completion_tokens) == (5, 2)


def test_several_answers_are_several_generations() -> None:
    found = read_generations(
        CHAT
        | {
            "gen_ai.output.messages": '[{"role":"assistant","finish_reason":"stop"},{"role":"assistant"}]',
            "gen_ai.response.finish_reasons": '["x","length"]',
            "gen_ai.usage.output_tokens": "8",
        },
        (),
    )
    assert [(g.choice_index, g.num_choices, g.finish_reason) for g in found] == [
        (0, 2, "stop"),
        (1, 2, "length"),
    ]
    assert [g.completion_tokens for g in found] == [None, None]


@pytest.mark.parametrize(
    "names",
    [
        (
            "headrace.prompt_token_ids",
            "headrace.response_token_ids",
            "headrace.response_logprobs",
            "[-0.5,-1]",
        ),
        ("prompt_token_ids", "response_token_ids", "logprobs.content", '[{"logprob":-0.5},{"logprob":-1}]'),
    ],
    ids=["headrace's", "Agent-Lightning's"],
)
def test_token_ids_are_taken_where_the_recorder_wrote_them_g6(names: tuple[str, str, str, str]) -> None:
    prompt, response, logprobs, values = names
    tokens = {prompt: "[1,2,3]", response: "[4,5]", logprobs: values, "gen_ai.usage.output_tokens": "2"}
    generation = only(CHAT | tokens)
    assert generation.prompt_token_ids == (1, 2, 3)
    assert generation.response_token_ids == (4, 5)
    assert generation.response_logprobs == (-0.5, -1.0)
    assert generation.why_untrainable() is None
    assert only(CHAT | tokens | {"gen_ai.usage.output_tokens": "3"}).why_untrainable() == "usage_mismatch"


@pytest.mark.parametrize(
    "attributes",
    [
        pytest.param({"headrace.response_token_ids": "4 5"}, id="no JSON"),
        pytest.param({"headrace.response_token_ids": '["4"]'}, id="strings"),
        pytest.param({"headrace.response_token_ids": "[true]"}, id="booleans"),
        pytest.param({"headrace.response_token_ids": "{}"}, id="an object"),
        pytest.param({"gen_ai.usage.input_tokens": "many"}, id="usage a word"),
    ],
)
def test_token_ids_and_counts_that_are_none_are_malformed(attributes: dict[str, str]) -> None:
    with pytest.raises(MalformedError):
        read_generations(CHAT | attributes, ())


def test_half_a_surrogate_pair_in_a_message_stays_escaped() -> None:
    generation = only(CHAT | {"gen_ai.output.messages": '[{"content":"\\ud83c"}]'})
    assert "\\ud83c" in generation.response
    generation.response.encode()
