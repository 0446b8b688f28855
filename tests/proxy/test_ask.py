from typing import Any

import pytest

from headrace.proxy.ask import Asked, Operation, ask, is_stream, num_choices, sampling_of, strip
from headrace.proxy.problem import RefusedError

NOTHING = Asked(token_ids=False, logprobs=False, usage=False)
ALL = Asked(token_ids=True, logprobs=True, usage=True)


@pytest.mark.parametrize(
    ("request_", "operation", "added"),
    [
        pytest.param({}, "chat", {"return_token_ids": True, "logprobs": True}, id="chat"),
        pytest.param({}, "text_completion", {"return_token_ids": True, "logprobs": 0}, id="completion"),
        pytest.param(
            {"logprobs": True, "top_logprobs": 3},
            "chat",
            {"return_token_ids": True, "logprobs": True, "top_logprobs": 3},
            id="chat with its own",
        ),
        pytest.param({"logprobs": 5}, "text_completion", {"return_token_ids": True, "logprobs": 5}, id="5"),
    ],
)
def test_what_is_added(request_: dict[str, Any], operation: Operation, added: dict[str, Any]) -> None:
    ask(request_, operation, is_stream=False, with_token_ids=True)
    assert request_ == added


def test_nothing_is_added_for_upstreams_that_know_no_ids() -> None:
    request: dict[str, Any] = {"model": "m"}
    ask(request, "chat", is_stream=False, with_token_ids=False)
    assert request == {"model": "m"}


def test_a_stream_is_asked_for_its_usage_and_keeps_its_options() -> None:
    request: dict[str, Any] = {"stream_options": {"continuous_usage_stats": True}}
    asked = ask(request, "chat", is_stream=True, with_token_ids=True)
    assert request["stream_options"] == {"continuous_usage_stats": True, "include_usage": True}
    assert asked == NOTHING


@pytest.mark.parametrize(
    ("request_", "operation", "asked"),
    [
        pytest.param({"logprobs": False}, "chat", NOTHING, id="no logprobs"),
        pytest.param({"logprobs": 0}, "text_completion", Asked(False, True, False), id="0 logprobs"),
        pytest.param(
            {"logprobs": True, "return_token_ids": True, "stream_options": {"include_usage": True}},
            "chat",
            ALL,
            id="all",
        ),
    ],
)
def test_what_the_client_asked_for(request_: dict[str, Any], operation: Operation, asked: Asked) -> None:
    assert ask(request_, operation, is_stream=True, with_token_ids=True) == asked


def chunk(**choice: Any) -> dict[str, Any]:
    return {"prompt_token_ids": [1], "choices": [{"index": 0, "token_ids": [2], **choice}]}


def test_ids_and_logprobs_are_taken_out() -> None:
    payload = chunk(delta={"content": "a"}, logprobs={"content": []}) | {"usage": {"total_tokens": 1}}
    assert strip(payload, NOTHING, is_chunk=True)
    assert payload == {"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": None}]}


def test_what_was_asked_for_stays() -> None:
    payload = chunk(delta={}, logprobs={"content": []}) | {"usage": {"total_tokens": 1}}
    before = {**payload}
    assert strip(payload, ALL, is_chunk=True)
    assert payload == before


def test_usage_of_an_answer_in_one_piece_stays() -> None:
    payload: dict[str, Any] = {"choices": [], "usage": {"total_tokens": 1}}
    assert strip(payload, NOTHING, is_chunk=False)
    assert payload["usage"] == {"total_tokens": 1}


@pytest.mark.parametrize(
    ("payload", "is_sent"),
    [
        pytest.param({"choices": [], "usage": {"total_tokens": 1}}, False, id="usage nobody asked for"),
        pytest.param(chunk(delta={}, finish_reason=None), False, id="ids alone"),
        pytest.param(chunk(delta={}, finish_reason="stop"), True, id="the end"),
        pytest.param({"choices": [], "note": 1}, True, id="something else"),
    ],
)
def test_chunks_with_nothing_left(payload: dict[str, Any], is_sent: bool) -> None:  # noqa: FBT001
    assert strip(payload, NOTHING, is_chunk=True) is is_sent


@pytest.mark.parametrize(
    ("request_", "operation", "number"),
    [
        pytest.param({}, "chat", 1, id="default"),
        pytest.param({"n": 3}, "chat", 3, id="n"),
        pytest.param({"n": None}, "chat", 1, id="null"),
        pytest.param({"n": 0}, "chat", 1, id="none"),
        pytest.param({"n": 200}, "chat", 200, id="many"),
        pytest.param({"n": 2, "prompt": ["a", "b", "c"]}, "text_completion", 6, id="prompts"),
        pytest.param({"prompt": [1, 2, 3]}, "text_completion", 1, id="token ids"),
        pytest.param({"prompt": [[1], [2]]}, "text_completion", 2, id="prompts of token ids"),
        pytest.param({"prompt": "a"}, "text_completion", 1, id="one prompt"),
    ],
)
def test_number_of_choices(request_: dict[str, Any], operation: Operation, number: int) -> None:
    assert num_choices(request_, operation) == number


def test_sampling_has_numbers_only() -> None:
    request = {"temperature": 0.5, "top_k": 3, "seed": None, "top_p": True, "max_tokens": "7", "model": "m"}
    assert dict(sampling_of(request)) == {"temperature": 0.5, "top_k": 3.0}


@pytest.mark.parametrize("number", ["3", 2.0, True, [2]], ids=repr)
def test_a_number_of_choices_that_upstreams_read_each_in_their_way(number: Any) -> None:
    with pytest.raises(RefusedError) as refused:
        num_choices({"n": number}, "chat")
    assert (refused.value.problem.status, refused.value.problem.param) == (400, "n")


@pytest.mark.parametrize(("stream", "expected"), [(None, False), (False, False), (True, True)])
def test_a_stream_is_asked_for(stream: Any, expected: bool) -> None:  # noqa: FBT001
    assert is_stream({} if stream is None else {"stream": stream}) is expected
    assert is_stream({"stream": stream}) is expected


@pytest.mark.parametrize("stream", [1, 0, "true", "false", []], ids=repr)
def test_a_stream_that_upstreams_read_each_in_their_way(stream: Any) -> None:
    with pytest.raises(RefusedError) as refused:
        is_stream({"stream": stream})
    assert (refused.value.problem.status, refused.value.problem.param) == (400, "stream")
