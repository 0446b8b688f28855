import json
from typing import Any

import pytest
from tests.streams.ingest.lines import CREATED, assistant, choice, exchange, line, user

from headrace.schemas.records import AttemptEvent, Record, Reward, Span
from headrace.streams.ingest.bad_input import MalformedError
from headrace.streams.ingest.openai_chats import ChatImport, Grouping


def read(*lines: str, group: Grouping = "conversation", window: int = 100) -> list[Record]:
    chats = ChatImport(group=group, window=window)
    return [record for text in lines for record in chats.feed(text)] + list(chats.close())


def spans(records: list[Record]) -> list[Span]:
    return [record for record in records if isinstance(record, Span)]


def only_span(text: str) -> Span:
    (span,) = spans(read(text))
    return span


def rewards(records: list[Record]) -> list[tuple[str, float, int | None]]:
    return [(r.name, r.value, r.about_sequence_id) for r in records if isinstance(r, Reward)]


def ended(records: list[Record]) -> list[AttemptEvent]:
    return [record for record in records if isinstance(record, AttemptEvent) and record.kind == "ended"]


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        pytest.param(assistant("done"), "stop", id="stop"),
        pytest.param(assistant("it goes on"), "length", id="length"),
        pytest.param(
            {"role": "assistant", "content": None, "tool_calls": [CALL]}, "tool_calls", id="tool call"
        ),
        pytest.param(
            {"role": "assistant", "content": "I look.", "tool_calls": [CALL, CALL | {"id": "c2"}]},
            "tool_calls",
            id="text and two tool calls",
        ),
        pytest.param(
            {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
            "function_call",
            id="function",
        ),
        pytest.param(assistant(""), "content_filter", id="content filter"),
        pytest.param(assistant("?"), None, id="none"),
    ],
)
def test_finish_reasons_and_tool_calls_come_through(answer: dict[str, Any], reason: str | None) -> None:
    made = choice(answer) | {"finish_reason": reason}
    span = only_span(line([user("hi")], response={"choices": [made]}))
    assert span.generation is not None
    assert span.generation.finish_reason == reason
    assert json.loads(span.generation.response)["choices"][0]["message"] == answer
    listed = None if reason is None else json.dumps([reason])
    assert span.attributes.get("gen_ai.response.finish_reasons") == listed


def test_several_choices_are_several_spans_in_order_of_index() -> None:
    choices = [choice("b", 1), choice("a", 0), choice("c", 2)]
    usage = {"prompt_tokens": 3, "completion_tokens": 30}
    records = read(line([user("hi")], response={"choices": choices, "usage": usage}))
    found = [(s.sequence_id, s.generation.choice_index) for s in spans(records) if s.generation]
    assert found == [(1, 0), (2, 1), (3, 2)]
    assert len({span.span_id for span in spans(records)}) == 3
    for span in spans(records):
        assert span.generation is not None
        assert span.generation.num_choices == 3
        assert span.generation.completion_tokens is None, "usage counts all three together"
        assert span.attributes["gen_ai.usage.output_tokens"] == "30"
    assert ended(records)[0].last_sequence_id == 3


@pytest.mark.parametrize(
    ("counted", "completion_tokens", "reason"),
    [
        pytest.param(3, (1, 2), None, id="ids add up"),
        pytest.param(4, (None, None), "usage_mismatch", id="ids are missing (C6)"),
        pytest.param(None, (None, None), None, id="no usage"),
    ],
)
def test_usage_of_several_choices_is_shared_out_only_by_ids_that_add_up(
    counted: int | None, completion_tokens: tuple[int | None, ...], reason: str | None
) -> None:
    def with_ids(index: int, ids: list[int]) -> dict[str, Any]:
        content = [{"token": "t", "logprob": -0.5} for _ in ids]
        return choice("x", index, token_ids=ids, logprobs={"content": content})

    response = {
        "choices": [with_ids(0, [7]), with_ids(1, [8, 9])],
        "prompt_token_ids": [1, 2],
        "usage": None if counted is None else {"prompt_tokens": 2, "completion_tokens": counted},
    }
    generations = [span.generation for span in spans(read(line([user("hi")], response=response)))]
    assert tuple(g.completion_tokens for g in generations if g) == completion_tokens
    assert [g.why_untrainable() for g in generations if g] == [reason, reason]


def test_the_engines_token_ids_and_logprobs_are_taken_as_they_are_g6() -> None:
    logprobs = {
        "content": [{"token": "a", "logprob": -0.25, "top_logprobs": []}, {"token": "b", "logprob": 0}]
    }
    response = {
        "prompt_token_ids": [5, 6, 7],
        "choices": [choice("ab", token_ids=[1, 2], logprobs=logprobs)],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }
    generation = only_span(line([user("hi")], response=response)).generation
    assert generation is not None
    assert generation.prompt_token_ids == (5, 6, 7)
    assert generation.response_token_ids == (1, 2)
    assert generation.response_logprobs == (-0.25, 0.0)
    assert generation.why_untrainable() is None


def test_logprobs_without_ids_are_kept_and_the_call_is_untrainable() -> None:
    logprobs = {"content": [{"token": "a", "logprob": -0.25}]}
    generation = only_span(
        line([user("hi")], response={"choices": [choice("a", logprobs=logprobs)]})
    ).generation
    assert generation is not None
    assert generation.response_logprobs == (-0.25,)
    assert generation.why_untrainable() == "no_token_ids"


def test_text_is_kept_as_written_down_to_number_forms_and_escapes() -> None:
    request = '{ "messages": [{"role":"user","content":"\\u00e9 \\ud83c\\udf0a"}], "seed": 1e2, "model":"m"}'
    response = (
        '{"created":1790000000,"choices":[{"message":{"content":"é"}}],"x":123456789012345678901234567890}'
    )
    span = only_span(f'{{"response" : {response} , "request":{request}}}')
    assert span.generation is not None
    assert span.generation.request == request
    assert span.generation.response == response
    assert span.generation.sampling == {"seed": 100.0}


def test_other_members_of_a_line_stay_as_attributes() -> None:
    span = only_span(line([user("hi")], run="r1", meta={"k": [1, None]}, agent="a"))
    assert span.attributes["headrace.line.run"] == "r1"
    assert span.attributes["headrace.line.meta"] == '{"k":[1,null]}'
    assert span.attributes["gen_ai.agent.name"] == "a"
    assert span.generation is not None
    assert span.generation.agent == "a"


@pytest.mark.parametrize("beside", [{}, {"reward": 0}, {"rewards": [1]}])
def test_nothing_waits_for_a_reward_since_those_there_are_have_sequence_ids(beside: dict[str, Any]) -> None:
    records = read(line([user("hi")], **beside))
    (started,) = (r for r in records if isinstance(r, AttemptEvent) and r.origin)
    assert started.origin is not None
    assert started.origin.group_id == started.rollout_id
    assert started.origin.accept == ("succeeded",)
    assert started.origin.reward_grace_s == 0.0
    assert [r.sequence_id for r in records if isinstance(r, Reward)] == [2] * len(beside)
    assert ended(records)[0].last_sequence_id == 1 + len(beside)


FIRST = [user("a")]
SECOND = [*FIRST, assistant("b"), user("c")]
THIRD = [*SECOND, assistant("d"), user("e")]


@pytest.mark.parametrize(
    ("beside", "expected"),
    [
        pytest.param([{}, {}, {}], [], id="none (None is not 0, C1)"),
        pytest.param([{}, {}, {"reward": 0.0}], [("outcome", 0.0, None)], id="at the end"),
        pytest.param([{"reward": 1}, {}, {}], [("outcome", 1.0, None)], id="at the start"),
        pytest.param(
            [{"reward": 1}, {"reward": 2}, {"reward": 3}],
            [("step", 1.0, 1), ("step", 2.0, 2), ("outcome", 3.0, None)],
            id="each turn: the last is the outcome",
        ),
        pytest.param([{}, {"rewards": [0.5]}, {}], [("step", 0.5, 2)], id="of a call"),
        pytest.param(
            [{"rewards": [{"value": 1, "name": "style", "source": "judge"}]}, {}, {"reward": 2}],
            [("style", 1.0, 1), ("outcome", 2.0, None)],
            id="named",
        ),
    ],
)
def test_rewards(beside: list[dict[str, Any]], expected: list[tuple[str, float, int | None]]) -> None:
    turns = [(FIRST, "b"), (SECOND, "d"), (THIRD, "f")]
    records = read(*(line(m, a, **more) for (m, a), more in zip(turns, beside, strict=True)))
    assert rewards(records) == expected
    assert len(ended(records)) == 1
    given = [record.reward_id for record in records if isinstance(record, Reward)]
    assert len(set(given)) == len(given)


def test_a_list_of_numbers_rewards_the_choices_at_their_places() -> None:
    records = read(line([user("hi")], "x", "y", rewards=[0.1, 0.9]))
    assert rewards(records) == [("step", 0.1, 1), ("step", 0.9, 2)]


def test_turns_get_the_next_sequence_ids_and_the_attempts_times_span_them() -> None:
    records = read(line(FIRST, "b", "b2"), line([user("other")]), line(SECOND, "d", created=CREATED + 60.5))
    by_attempt: dict[str, list[int | None]] = {}
    for span in spans(records):
        by_attempt.setdefault(span.attempt_id, []).append(span.sequence_id)
    assert list(by_attempt.values()) == [[1, 2, 3], [1]]
    first = next(event for event in ended(records) if event.attempt_id == spans(records)[0].attempt_id)
    assert first.last_sequence_id == 3
    assert first.time.timestamp() == CREATED + 60.5
    assert len({span.trace_id for span in spans(records)}) == 2


def test_by_line_each_line_is_an_attempt() -> None:
    records = read(line(FIRST, "b"), line(SECOND, "d"), group="line")
    assert [span.sequence_id for span in spans(records)] == [1, 1]
    assert len({span.attempt_id for span in spans(records)}) == 2
    assert len(ended(records)) == 2


def test_a_repeated_line_is_counted_and_left_out() -> None:
    chats = ChatImport()
    records = chats.feed(line(FIRST, "b")) + chats.feed(line(FIRST, "b") + " \n") + list(chats.close())
    assert len(spans(records)) == 1
    assert ended(records)[0].last_sequence_id == 1
    assert chats.num_repeated == 1


def test_a_conversation_ends_when_its_last_turn_leaves_the_window() -> None:
    chats = ChatImport(window=2)
    first = chats.feed(line(FIRST, "b"))
    second = chats.feed(line([user("x")]))
    third = chats.feed(line([user("y")]))
    assert ended(first + second) == []
    assert [event.attempt_id for event in ended(third)] == [spans(first)[0].attempt_id]
    late = chats.feed(line(SECOND, "d"))
    assert [span.sequence_id for span in spans(late)] == [1], "a new attempt"


def test_samples_of_one_task_share_its_id_and_not_their_own() -> None:
    records = read(line(FIRST, "b"), line(FIRST, "z", created=CREATED + 1), line([user("x")]))
    tasks = [r.origin.task_id for r in records if isinstance(r, AttemptEvent) and r.origin]
    assert tasks[0] == tasks[1] != tasks[2]
    named = read(line(FIRST, "b", task_id="t", group_id="g"))
    origins = [r.origin for r in named if isinstance(r, AttemptEvent) and r.origin]
    assert [(origin.task_id, origin.group_id) for origin in origins] == [("t", "g")]


GOOD = exchange([user("SECRET")])


@pytest.mark.parametrize(
    ("text", "reason", "detail"),
    [
        pytest.param("", "not_json", "ends within", id="empty"),
        pytest.param("{", "not_json", "ends within", id="cut at once"),
        pytest.param(json.dumps(GOOD)[:-20], "not_json", "", id="cut later"),
        pytest.param(json.dumps(GOOD) + "{}", "not_json", "more text", id="two objects"),
        pytest.param("[1]", "not_json", "not an object", id="a list"),
        pytest.param('{"request":1,"request":2}', "not_json", "stands twice", id="a name twice"),
        pytest.param('{"a":' + "[" * 100_000, "not_json", "", id="deep"),
        pytest.param(json.dumps(GOOD | {"reward": float("nan")}), "not_json", "NaN", id="NaN (C17)"),
        pytest.param(json.dumps(GOOD).replace('"r"', "1e999"), "invalid", "response.id", id="wrong type"),
        pytest.param(json.dumps({"request": GOOD["request"]}), "invalid", "response", id="no response"),
        pytest.param(line([]), "invalid", "messages", id="no messages"),
        pytest.param(line([user("x")], reward="good"), "invalid", "reward", id="reward a string"),
        pytest.param(line([user("x")], reward=True), "invalid", "reward", id="reward a boolean"),
        pytest.param(
            line([user("x")], rewards=[1, 2]), "invalid", "not there", id="more rewards than choices"
        ),
        pytest.param(line([user("x")], response={"choices": []}), "invalid", "choices", id="no choices"),
        pytest.param(
            line([user("x")], response={"choices": [choice("a"), choice("b")]}),
            "invalid",
            "index",
            id="an index twice",
        ),
        pytest.param(line([user("x")], created=0), "invalid", "created", id="1970 (C16)"),
        pytest.param(line([user("x")], created=CREATED * 1000), "invalid", "created", id="milliseconds"),
        pytest.param(line([user("x")], request={"seed": 10**400}), "invalid", "range", id="number too large"),
        pytest.param(
            line([user("x")], response={"choices": [choice("a", token_ids=[1, -1])]}),
            "invalid",
            "token_ids",
            id="ids",
        ),
        pytest.param(
            line([user("x")], response={"choices": [choice("a", token_ids=["1"])]}),
            "invalid",
            "token_ids",
            id="text ids",
        ),
        pytest.param(line([user("x")], agent="\ud800"), "invalid", "agent", id="half a surrogate pair"),
        pytest.param(
            json.dumps({"request": GOOD["request"], "response": {"error": {"message": "SECRET"}}}),
            "invalid",
            "response.choices",
            id="an error response",
        ),
    ],
)
def test_malformed_lines_say_why_change_nothing_and_quote_nothing(
    text: str, reason: str, detail: str
) -> None:
    chats = ChatImport()
    with pytest.raises(MalformedError) as caught:
        chats.feed(text)
    assert caught.value.reason == reason
    assert detail in caught.value.detail
    assert "SECRET" not in str(caught.value)
    assert list(chats.close()) == []
