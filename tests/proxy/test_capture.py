"""What is captured is what the engine said, in one piece or in chunks of any order of choices (G6)."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.proxy.fake_vllm import _Answer, said

from headrace.proxy.ask import Operation
from headrace.proxy.capture import Capture
from headrace.proxy.spans import Call, Place, num_spans, spans_of
from headrace.schemas.ids import uuid7
from headrace.schemas.records import Generation, Span, now

ASKED = {"return_token_ids": True, "logprobs": True}


def capture_of(payloads: list[dict[str, Any]], operation: Operation = "chat") -> Capture:
    capture = Capture(operation)
    for payload in payloads:
        capture.take(payload)
    return capture


def call(**known: Any) -> Call:
    fields: dict[str, Any] = {
        "place": Place(uuid7(), uuid7(), "t" * 32),
        "operation": "chat",
        "dialect": "openai_chat",
        "body": b"{}",
        "request": {"model": "asked"},
        "started": now(),
        "is_stream": False,
    }
    return Call(**(fields | known))


def spans(capture: Capture, **known: Any) -> list[Span]:
    return spans_of(call(**known), capture, range(1, num_spans(capture) + 1), now())


def generation(capture: Capture, **known: Any) -> Generation:
    (span,) = spans(capture, **known)
    assert span.generation is not None
    return span.generation


@given(
    number=st.integers(0, 2**40),
    num_tokens=st.integers(1, 20),
    choices=st.integers(1, 4),
    is_chat=st.booleans(),
    seed=st.integers(0, 100),
)
def test_a_stream_gives_what_the_whole_answer_gives(
    *,
    number: int,
    num_tokens: int,
    choices: int,
    is_chat: bool,
    seed: int,
) -> None:
    answer = _Answer(ASKED | {"n": choices}, f"fake-{number}-{num_tokens}", "none", is_chat=is_chat)
    operation: Operation = "chat" if is_chat else "text_completion"
    rng = random.Random(seed)
    queues = [
        [chunk for chunk in answer.chunks() if chunk["choices"][0]["index"] == index]
        for index in range(choices)
    ]
    chunks = []
    while any(queues):
        chunks.append(rng.choice([queue for queue in queues if queue]).pop(0))
    streamed = capture_of([*chunks, {"choices": [], "usage": answer.usage()}], operation)
    whole = capture_of([answer.whole()], operation)
    for index, (a, b) in enumerate(
        zip(spans(streamed, operation=operation), spans(whole, operation=operation), strict=True)
    ):
        what = said(answer.id, index)
        assert a.generation is not None
        assert b.generation is not None
        assert a.generation.response_token_ids == b.generation.response_token_ids == what.ids
        assert a.generation.response_logprobs == b.generation.response_logprobs == what.logprobs
        assert a.generation.prompt_token_ids == b.generation.prompt_token_ids == what.prompt
        assert a.generation.completion_tokens == b.generation.completion_tokens == num_tokens
        assert a.generation.why_untrainable() is None
        assert b.generation.why_untrainable() is None
        assert what.text in a.generation.response
        assert what.text in b.generation.response


def test_tool_calls_of_a_stream_are_merged() -> None:
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": None},
        {
            "tool_calls": [
                {"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": ""}}
            ]
        },
        {
            "tool_calls": [
                {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{"}}
            ]
        },
        {
            "tool_calls": [
                {"index": 0, "function": {"arguments": "}"}},
                {"index": 1, "function": {"arguments": "1"}},
            ]
        },
        {"reasoning": "so "},
        {"reasoning": "it is"},
    ]
    capture = capture_of([{"choices": [{"index": 0, "delta": delta}]} for delta in deltas])
    assert capture.choices[0].answer("chat")["message"] == {
        "role": "assistant",
        "content": None,
        "reasoning": "so it is",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            {"id": "b", "type": "function", "function": {"name": "g", "arguments": "1"}},
        ],
    }


def whole(**changes: Any) -> dict[str, Any]:
    answer = _Answer(ASKED, "fake-5-4", "none", is_chat=True).whole()
    choice = answer["choices"][0] | {
        name: value for name, value in changes.items() if name in ("token_ids", "logprobs")
    }
    rest = {name: value for name, value in changes.items() if name not in choice}
    return answer | rest | {"choices": changes.get("choices", [choice])}


@pytest.mark.parametrize(
    ("payload", "known", "reason"),
    [
        pytest.param(whole(), {}, None, id="as it should be"),
        pytest.param(whole(token_ids=[1, 2]), {}, "usage_mismatch", id="ids lost in a parser (C6)"),
        pytest.param(whole(logprobs=None), {}, "logprobs_mismatch", id="no logprobs"),
        pytest.param(whole(token_ids=None, prompt_token_ids=None), {}, "no_token_ids", id="no ids"),
        pytest.param(whole(token_ids=None), {}, "usage_mismatch", id="no response ids"),
        pytest.param(whole(usage=None), {}, "usage_missing", id="no usage"),
        pytest.param(whole(usage={"prompt_tokens": 3}), {}, "usage_missing", id="half a usage"),
        pytest.param(whole(), {"is_other_model": True}, "other_model", id="of an adapter"),
        pytest.param(whole(), {"distrust": "logprobs_unknown"}, "logprobs_unknown", id="not looked at"),
        pytest.param(whole(prompt_token_ids=None), {}, "no_prompt_token_ids", id="no prompt ids"),
        pytest.param(whole(choices=[]), {}, "no_choices", id="no choices"),
        pytest.param(whole(token_ids=[-1, 2, 3, 4]), {}, "answer_not_readable", id="no ids at all"),
        pytest.param(
            whole(logprobs={"token_logprobs": [None, -1.0, -1.0, -1.0]}), {}, "logprobs_invalid", id="echo"
        ),
        pytest.param(whole(), {"problem": "client_disconnected"}, "client_disconnected", id="cut"),
        pytest.param(whole(), {"distrust": "raw_logprobs"}, "raw_logprobs", id="of another distribution"),
        pytest.param(whole(), {"request": {"use_beam_search": True}}, "beam_search", id="beams"),
    ],
)
def test_what_can_t_train_says_why(
    payload: dict[str, Any], known: dict[str, Any], reason: str | None
) -> None:
    """C3, C6, C7: nothing is made up, nothing is dropped."""
    made = generation(capture_of([payload]), **known)
    assert made.why_untrainable() == reason
    if reason == "no_choices":
        assert made.response_token_ids == ()


def test_a_call_without_an_answer_is_a_span_that_says_so() -> None:
    (span,) = spans(Capture("chat"), problem="upstream_error_400", answer_body=b"too long", status_code=400)
    assert (span.status, span.status_message) == ("error", "upstream_error_400")
    assert span.attributes["http.response.status_code"] == "400"
    assert span.generation is not None
    assert span.generation.response == "too long"
    assert span.generation.model == "asked"


def test_choices_whose_sum_does_not_fit_can_t_train() -> None:
    answer = _Answer(ASKED | {"n": 2}, "fake-5-4", "usage_lies", is_chat=True).whole()
    first, second = spans(capture_of([answer]), num_choices=2)
    assert first.generation is not None
    assert second.generation is not None
    assert first.generation.completion_tokens is None
    assert {first.generation.why_untrainable(), second.generation.why_untrainable()} == {"usage_mismatch"}
    assert [first.sequence_id, second.sequence_id] == [1, 2]


@pytest.mark.parametrize(
    ("indices", "asked", "expected"),
    [((0,), 1, 1), ((0, 1), 1, 2), ((3,), 1, 4), ((0,), 3, 3)],
    ids=["one", "more than asked for", "another place", "fewer"],
)
def test_a_choice_is_one_of_at_least_as_many(indices: tuple[int, ...], asked: int, expected: int) -> None:
    choices = [{"index": index, "message": {"content": "x"}, "finish_reason": "stop"} for index in indices]
    for span in spans(capture_of([{"choices": choices}]), num_choices=asked):
        assert span.generation is not None
        assert span.generation.num_choices == expected


@pytest.mark.parametrize(
    ("reasons", "asked", "is_finished"),
    [
        (("stop",), 1, True),
        (("stop",), 2, False),
        (("stop", None), 1, False),
        (("stop", "length"), 1, True),
        ((), 1, False),
    ],
)
def test_it_is_finished_when_every_choice_is(
    reasons: tuple[str | None, ...],
    asked: int,
    is_finished: bool,  # noqa: FBT001
) -> None:
    choices = [{"index": index, "finish_reason": reason} for index, reason in enumerate(reasons)]
    assert capture_of([{"choices": choices}]).is_finished(asked) is is_finished


def test_other_weights_than_those_of_the_version_are_not_stamped_with_it() -> None:
    version = {"resource_name": "policy", "resource_version": 3}
    made = generation(capture_of([whole()]), is_other_model=True, **version)
    assert (made.resource_name, made.resource_version) == (None, None)
    made = generation(capture_of([whole()]), **version)
    assert (made.resource_name, made.resource_version) == ("policy", 3)
