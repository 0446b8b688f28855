from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic.types import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proxy.anthropic.official import (
    BODY,
    USAGE,
    accumulate,
    call,
    chunk,
    completion,
    events_in,
    streamed,
)

from headrace.proxy.anthropic import MESSAGES
from headrace.proxy.dialect import Json
from headrace.proxy.problem import Problem


def fragment(arguments: str | None = None, index: int = 0, **head: Any) -> Json:
    function = {
        name: value for name, value in (("name", head.pop("name", None)), ("arguments", arguments)) if value
    }
    return {"index": index, "function": function, **head}


def kinds(body: bytes) -> list[str]:
    return [event.type for event in events_in(body)]


def whole(answer: Json) -> Message:
    return Message.model_validate_json(MESSAGES.open(BODY).answer(answer))


def plain(message: Message) -> Json:
    """Of either way to a message, less what only the client's own class has."""
    return Message.model_validate(
        message.model_dump(exclude={"content": {"__all__": {"parsed_output"}}})
    ).model_dump()


def test_text() -> None:
    body = streamed(
        [
            chunk({"role": "assistant", "content": ""}),
            chunk({"content": "hel"}),
            chunk({"content": "lo"}),
            chunk({}, "stop"),
            chunk() | {"usage": USAGE},
        ]
    )
    assert kinds(body) == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert plain(accumulate(body)) == plain(whole(completion({"content": "hello"})))


def test_text_flows_as_it_comes() -> None:
    exchange = MESSAGES.open(BODY | {"stream": True})
    assert kinds(exchange.feed(chunk({"role": "assistant"}))) == ["message_start"]
    assert kinds(exchange.feed(chunk({"content": "a"}))) == ["content_block_start", "content_block_delta"]
    assert kinds(exchange.feed(chunk({"content": "b"}))) == ["content_block_delta"]
    assert exchange.feed(chunk({"content": ""})) == b""
    assert exchange.feed(chunk({}, "stop")) == b""
    assert exchange.feed(chunk() | {"usage": USAGE}) == b""


def test_everything_in_one_chunk() -> None:
    delta = {
        "reasoning": "hm",
        "content": "hello",
        "tool_calls": [fragment('{"x": 1}', id="call_1", name="look")],
    }
    body = streamed([chunk(delta, "tool_calls") | {"usage": USAGE}])
    message = {"reasoning": "hm", "content": "hello", "tool_calls": [call()]}
    assert plain(accumulate(body)) == plain(whole(completion(message, "tool_calls")))


def test_interleaved_tool_calls_come_one_after_the_other() -> None:
    body = streamed(
        [
            chunk({"tool_calls": [fragment(id="call_1", name="look")]}),
            chunk({"tool_calls": [fragment('{"x"'), fragment('{"x":', 1, id="call_2", name="jump")]}),
            chunk({"tool_calls": [fragment(" 2}", 1)]}),
            chunk({"tool_calls": [fragment(": 1}")]}),
            chunk({}, "tool_calls"),
            chunk() | {"usage": USAGE},
        ]
    )
    calls = [call(), call("jump", '{"x": 2}', "call_2")]
    assert plain(accumulate(body)) == plain(whole(completion({"tool_calls": calls}, "tool_calls")))
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert kinds(body) == ["message_start", *block, *block, "message_delta", "message_stop"]


def test_a_tool_call_is_not_told_before_the_end_g1() -> None:
    exchange = MESSAGES.open(BODY | {"stream": True})
    exchange.feed(chunk({"role": "assistant"}))
    ping = b'event: ping\ndata: {"type":"ping"}\n\n'
    assert exchange.feed(chunk({"tool_calls": [fragment("{}", id="call_1", name="look")]})) == ping
    assert exchange.feed(chunk({}, "tool_calls")) == b""
    assert b'"tool_use"' in exchange.finish()


def test_words_after_a_tool_call_come_before_it() -> None:
    chunks = [
        chunk({"tool_calls": [fragment("{}", id="call_1", name="look")]}),
        chunk({"content": "so"}, "tool_calls"),
    ]
    assert [block.type for block in accumulate(streamed(chunks)).content] == ["text", "tool_use"]


def test_thinking_between_words_is_a_block_of_its_own() -> None:
    chunks = [chunk({"content": "a"}), chunk({"reasoning": "hm"}), chunk({"content": "b"}, "stop")]
    assert [block.type for block in accumulate(streamed(chunks)).content] == ["text", "thinking", "text"]


@pytest.mark.parametrize(
    ("chunks", "model"),
    [
        pytest.param([], "m", id="no chunk"),
        pytest.param([chunk()], "m-1", id="no choices"),
        pytest.param([chunk({"role": "assistant"}), chunk({}, "stop")], "m-1", id="no words"),
    ],
)
def test_an_empty_stream_ends_well(chunks: list[Json], model: str) -> None:
    message = accumulate(streamed(chunks))
    assert (message.model, message.stop_reason, message.usage.output_tokens) == (model, "end_turn", 0)
    assert [block.type for block in message.content] == ["text"]


@pytest.mark.parametrize(
    ("finish_reason", "matched", "expected"),
    [
        pytest.param("stop", "END", ("stop_sequence", "END"), id="stop string"),
        pytest.param("length", None, ("max_tokens", None), id="length"),
        pytest.param("content_filter", None, ("refusal", None), id="filter"),
    ],
)
def test_why_it_stopped(finish_reason: str, matched: str | None, expected: tuple[str, str | None]) -> None:
    chunks = [
        chunk({"content": "a"}),
        chunk({}, finish_reason, stop_reason=matched),
        chunk() | {"usage": USAGE},
    ]
    message = accumulate(streamed(chunks))
    assert (message.stop_reason, message.stop_sequence) == expected


def test_usage_on_the_way_is_not_the_end_of_it() -> None:
    chunks = [
        chunk({"content": "a"}) | {"usage": {"prompt_tokens": 12, "completion_tokens": 1}},
        chunk({"content": "b"}, "stop") | {"usage": {"prompt_tokens": 12, "completion_tokens": 7}},
    ]
    usage = accumulate(streamed(chunks)).usage
    assert (usage.input_tokens, usage.output_tokens) == (12, 7)


@pytest.mark.parametrize("num_fed", [0, 1, 2], ids=["at once", "begun", "amid words"])
def test_a_failure_makes_the_client_raise(num_fed: int) -> None:
    exchange = MESSAGES.open(BODY | {"stream": True})
    chunks = [chunk({"role": "assistant"}), chunk({"content": "a"})][:num_fed]
    body = b"".join(map(exchange.feed, chunks))
    body += exchange.fail(Problem(503, "Kafka can't take it", "kafka_unavailable"))
    with pytest.raises(anthropic.APIStatusError, match="Kafka can't take it") as raised:
        accumulate(body)
    assert raised.value.body == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "Kafka can't take it"},
    }


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_ARGUMENTS = st.one_of(
    st.sampled_from(["", "{}", '{"x": 1}', '{"text": "é\\n", "more": [1, {}]}', '{"x": ', "nonsense", "[1]"]),
    _TEXT,
)


@st.composite
def _answers(draw: st.DrawFn) -> Json:
    calls = [
        call(draw(st.sampled_from(["look", "jump"])), draw(_ARGUMENTS), f"call_{number}")
        for number in range(draw(st.integers(0, 3)))
    ]
    message = {"content": draw(_TEXT), "reasoning": draw(_TEXT)} | ({"tool_calls": calls} if calls else {})
    reason = draw(st.sampled_from(["stop", "length", "tool_calls", "content_filter"]))
    return completion(message, reason, stop_reason=draw(st.sampled_from([None, "END", 2])))


def _pieces(draw: st.DrawFn, text: str) -> list[str]:
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def _call_deltas(draw: st.DrawFn, index: int, value: Json) -> Iterator[Json]:
    pieces = _pieces(draw, value["function"]["arguments"])
    yield fragment(pieces[0], index, id=value["id"], type="function", name=value["function"]["name"])
    for piece in pieces[1:]:
        yield fragment(piece, index)


@st.composite
def _splits(draw: st.DrawFn) -> tuple[Json, list[Json]]:
    """An answer and chunks of it: thinking before words, calls in any mixture, deltas joined as it falls."""
    answer = draw(_answers())
    choice = answer["choices"][0]
    message = choice["message"]
    deltas: list[Json] = [
        {name: piece} for name in ("reasoning", "content") for piece in _pieces(draw, message[name])
    ]
    queues = [
        list(_call_deltas(draw, index, each)) for index, each in enumerate(message.get("tool_calls", []))
    ]
    while queues := [queue for queue in queues if queue]:
        deltas.append({"tool_calls": [draw(st.sampled_from(queues)).pop(0)]})
    joined: list[Json] = [{"role": "assistant"}]
    for delta in deltas:
        if not joined[-1].keys() & delta.keys() and draw(st.booleans()):
            joined[-1] |= delta
        else:
            joined.append(delta)
    ending = {"finish_reason": choice["finish_reason"], "stop_reason": choice["stop_reason"]}
    chunks = [chunk(delta) for delta in joined]
    if draw(st.booleans()):
        chunks[-1]["choices"][0] |= ending
    else:
        chunks.append(chunk({}, **ending))
    chunks.append(chunk() | {"usage": answer["usage"]})
    return answer, chunks


@settings(max_examples=150, deadline=None)
@given(_splits())
def test_however_an_answer_is_cut_it_is_the_same_message(split: tuple[Json, list[Json]]) -> None:
    answer, chunks = split
    assert plain(accumulate(streamed(chunks))) == plain(whole(answer))
