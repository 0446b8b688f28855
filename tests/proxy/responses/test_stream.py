import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import (
    ResponseFailedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseStreamEvent,
    ResponseTextDeltaEvent,
)
from tests.proxy.responses.official import (
    BODY,
    USAGE,
    USAGE_CHUNK,
    WEATHER,
    answered,
    call,
    chunk,
    client_reading,
    completion,
    dialect,
    events_in,
    last_response,
    streamed,
)

from headrace.proxy.dialect import Json
from headrace.proxy.problem import Problem
from headrace.proxy.responses import ResponseStore

ROLE = chunk({"role": "assistant", "content": ""})
TEXT = [ROLE, chunk({"content": "Hel"}), chunk({"content": "lo."}), chunk({}, "stop"), USAGE_CHUNK]
KAFKA_IS_AWAY = Problem(503, "Kafka can't be reached", "kafka_unavailable", retry_after_s=1)


def part(index: int, arguments: str = "", **head: Any) -> Json:
    """A delta of a tool call."""
    call_id = {"id": head["id"]} if "id" in head else {}
    name = {"name": head["name"]} if "name" in head else {}
    return {"index": index, "function": {"arguments": arguments, **name}, **call_id}


def calls(*parts: Json) -> Json:
    return chunk({"tool_calls": list(parts)})


def kinds(events: list[ResponseStreamEvent]) -> list[str]:
    return [event.type.removeprefix("response.") for event in events]


def test_a_text() -> None:
    events = streamed(TEXT)
    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert last_response(events) == answered(completion({"content": "Hello."}), stream=True)


def test_events_come_as_the_chunks_do() -> None:
    exchange = dialect().open(BODY | {"stream": True})
    assert exchange.feed(ROLE).count(b"\n\n") == 2
    assert exchange.feed(chunk({"content": "a"})).count(b"event: response.output_text.delta\n") == 1
    assert exchange.feed(chunk({"content": "b"})).count(b"\n\n") == 1
    assert exchange.feed(chunk({})) == b""
    assert exchange.feed(USAGE_CHUNK) == b""


def test_reasoning_text_and_calls_in_turn() -> None:
    events = streamed(
        [
            chunk({"role": "assistant", "reasoning": "h"}),
            chunk({"reasoning": "m"}),
            chunk({"content": "x"}),
            calls(part(0, id="call_1", name="weather")),
            calls(part(0, "{")),
            calls(part(0, "}")),
            chunk({}, "tool_calls"),
            USAGE_CHUNK,
        ]
    )
    assert kinds(events)[2:] == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]


def test_a_refusal() -> None:
    assert "refusal.done" in kinds(streamed([chunk({"refusal": "No"}), chunk({"refusal": "."}, "stop")]))


def test_a_custom_tools_input_comes_whole() -> None:
    tools = [{"type": "custom", "name": "shell"}]
    pieces = [part(0, '{"inp', id="call_1", name="shell"), part(0, 'ut": "ls"}')]
    events = streamed([*map(calls, pieces), chunk({}, "tool_calls")], tools=tools)
    assert kinds(events)[2:] == [
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
        "completed",
    ]


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param(
            [
                calls(part(0, id="call_1", name="weather")),
                calls(part(1, id="call_2", name="weather")),
                calls(part(0, '{"a"'), part(1, '{"b"')),
                calls(part(1, ": 2}")),
                calls(part(0, ": 1}")),
            ],
            id="alternating",
        ),
        pytest.param(
            [
                calls(part(0, '{"a": 1}', id="call_1", name="weather")),
                calls(part(1, '{"b": 2}', id="call_2", name="weather")),
            ],
            id="whole",
        ),
        pytest.param(
            [
                calls(part(0, '{"a"', id="call_1", name="weather")),
                calls(part(0, ": 1}", id="call_1", name="weather")),
                calls(part(1, '{"b"'), part(1, id="call_2")),
                calls(part(1, ": 2}", name="weather")),
            ],
            id="head repeated or late",
        ),
    ],
)
def test_several_calls(chunks: list[Json]) -> None:
    events = streamed([*chunks, chunk({}, "tool_calls")])
    first, second = last_response(events).output
    assert isinstance(first, ResponseFunctionToolCall)
    assert isinstance(second, ResponseFunctionToolCall)
    assert (first.call_id, first.arguments) == ("call_1", '{"a": 1}')
    assert (second.call_id, second.arguments) == ("call_2", '{"b": 2}')


def test_half_a_characters_logprobs_come_with_its_text() -> None:
    def token(value: float) -> Json:
        return {"content": [{"token": "?", "logprob": value, "bytes": None, "top_logprobs": []}]}

    events = streamed(
        [
            chunk({"content": "a"}, logprobs=token(-1)),
            chunk({}, logprobs=token(-2)),
            chunk({"content": "é"}, logprobs=token(-3)),
            chunk({}, "stop", logprobs=token(-4)),
        ],
        include=["message.output_text.logprobs"],
    )
    deltas = [event for event in events if isinstance(event, ResponseTextDeltaEvent)]
    assert [[each.logprob for each in delta.logprobs] for delta in deltas] == [[-1], [-2, -3]]
    message = last_response(events).output[0]
    assert isinstance(message, ResponseOutputMessage)
    assert [each["logprob"] for each in message.content[0].to_dict()["logprobs"]] == [-1, -2, -3, -4]  # type: ignore[attr-defined]


@pytest.mark.parametrize("chunks", [TEXT[:-1], TEXT[:-2]], ids=["no usage", "no reason either"])
def test_an_end_without_usage(chunks: list[Json]) -> None:
    response = last_response(streamed(chunks))
    assert (response.output_text, response.usage, response.status) == ("Hello.", None, "completed")


def test_cut_off_by_length() -> None:
    events = streamed([*TEXT[:3], chunk({}, "length"), USAGE_CHUNK])
    response = last_response(events)
    assert events[-1].type == "response.incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


@pytest.mark.parametrize("chunks", [[], [USAGE_CHUNK]], ids=["nothing", "usage only"])
def test_a_stream_without_an_answer_has_failed(chunks: list[Json]) -> None:
    assert kinds(streamed(chunks)) == ["created", "in_progress", "failed", "error"]


def test_only_the_first_choice_counts() -> None:
    other = chunk({"content": "x"})
    other["choices"][0]["index"] = 1
    assert last_response(streamed([*TEXT[:2], other, *TEXT[2:]])).output_text == "Hello."


@pytest.mark.parametrize(
    "chunks",
    [
        [],
        TEXT[:2],
        [chunk({"reasoning": "h"})],
        [calls(part(0, '{"a', id="c", name="weather"))],
        [calls(part(0, '{"a'))],
        TEXT,
    ],
    ids=["first", "in a text", "in reasoning", "in a call", "before a call's name", "at the end"],
)
def test_a_broken_stream_fails_and_is_not_kept(chunks: list[Json]) -> None:
    store = ResponseStore()
    exchange = dialect(store).open(BODY | {"stream": True})
    events = events_in(b"".join(map(exchange.feed, chunks)) + exchange.fail(KAFKA_IS_AWAY))
    assert kinds(events)[:2] == ["created", "in_progress"]
    assert kinds(events)[-2:] == ["failed", "error"]
    failed = events[-2]
    assert isinstance(failed, ResponseFailedEvent)
    assert failed.response.error is not None
    assert failed.response.error.message == KAFKA_IS_AWAY.message
    assert len(store) == 0


def test_the_official_client_raises_on_a_failed_stream() -> None:
    exchange = dialect().open(BODY | {"stream": True})
    sent = b"".join(map(exchange.feed, TEXT[:2])) + exchange.fail(KAFKA_IS_AWAY)
    seen: list[str] = []

    async def main() -> None:
        async with client_reading(sent) as client:
            stream = await client.responses.create(**BODY, stream=True)
            while True:
                seen.append((await anext(stream)).type)

    with pytest.raises(openai.APIError, match="Kafka can't be reached") as raised:
        asyncio.run(main())
    assert raised.value.code == "kafka_unavailable"
    assert "response.output_text.delta" in seen


def test_the_official_client_gathers_a_stream() -> None:
    exchange = dialect().open(BODY | {"stream": True, "tools": [WEATHER]})
    chunks = [*TEXT[:3], calls(part(0, '{"city": ', id="call_1", name="weather")), calls(part(0, '"Oslo"}'))]
    chunks += [chunk({}, "tool_calls"), USAGE_CHUNK]
    sent = b"".join(map(exchange.feed, chunks)) + exchange.finish()

    async def main() -> tuple[list[str], Any]:
        async with client_reading(sent) as client, client.responses.stream(**BODY) as stream:
            return [event.type async for event in stream], await stream.get_final_response()

    types, response = asyncio.run(main())
    message, asked = response.output
    assert types[-1] == "response.completed"
    assert response.output_text == "Hello."
    assert message.status == "completed"
    assert asked.arguments == '{"city": "Oslo"}'


# --- any split is the same answer ------------------------------------------------------------------------

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def tokens(text: str) -> list[Json]:
    """A token to a character."""
    return [{"token": each, "logprob": -0.5, "bytes": None, "top_logprobs": []} for each in text]


@st.composite
def answers(draw: st.DrawFn) -> Json:
    message: Json = {}
    for name in ("reasoning", "content", "refusal"):
        if draw(st.booleans()):
            message[name] = draw(TEXTS)
    if draw(st.booleans()):
        arguments = draw(st.lists(TEXTS, min_size=1, max_size=3))
        message["tool_calls"] = [call(f"call_{i}", arguments=text) for i, text in enumerate(arguments)]
    reason = draw(st.sampled_from(["stop", "length", "tool_calls", "content_filter"]))
    return completion(message, reason, logprobs={"content": tokens(message.get("content") or "")})


@st.composite
def pieces(draw: st.DrawFn, text: str) -> list[str]:
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@st.composite
def call_chunks(draw: st.DrawFn, tool_calls: list[Json]) -> list[Json]:
    """Calls begin in order; what is left of each comes in any."""
    queues: list[list[Json]] = []
    for index, each in enumerate(tool_calls):
        function = each["function"]
        first, *more = draw(pieces(function["arguments"]))
        head = part(index, first, id=each["id"], name=function["name"])
        queues.append([head, *(part(index, piece) for piece in more)])
    deltas, num_begun = [queues[0].pop(0)], 1
    while any(queues):
        ready = [i for i, queue in enumerate(queues) if queue and i <= num_begun]
        chosen = draw(st.sampled_from(ready))
        num_begun = max(num_begun, chosen + 1)
        deltas.append(queues[chosen].pop(0))
    return [calls(delta) for delta in deltas]


@st.composite
def text_chunks(draw: st.DrawFn, name: str, text: str) -> list[Json]:
    chunks = []
    for piece in draw(pieces(text)):
        logprobs = tokens(piece) if name == "content" else []
        held = draw(st.integers(0, len(logprobs))) if piece else 0
        if held:
            chunks.append(chunk({}, logprobs={"content": logprobs[:held]}))
        chunks.append(chunk({name: piece}, logprobs={"content": logprobs[held:]}))
    return chunks


@st.composite
def splits(draw: st.DrawFn) -> tuple[Json, list[Json]]:
    answer = draw(answers())
    choice = answer["choices"][0]
    message = choice["message"]
    chunks: list[Json] = [ROLE]
    for name in ("reasoning", "content", "refusal"):
        if message.get(name) is not None:
            chunks += draw(text_chunks(name, message[name]))
    if message.get("tool_calls"):
        chunks += draw(call_chunks(message["tool_calls"]))
    chunks = list(joined(draw, chunks))
    if draw(st.booleans()):
        chunks[-1]["choices"][0]["finish_reason"] = choice["finish_reason"]
    else:
        chunks.append(chunk({}, choice["finish_reason"]))
    return answer, [*chunks, chunk(), chunk() | {"usage": USAGE}]


def joined(draw: st.DrawFn, chunks: list[Json]) -> Iterator[Json]:
    """Now and then two chunks of different kinds are one, and one of nothing stands between."""
    last = chunks[0]
    for each in chunks[1:]:
        before, after = last["choices"][0], each["choices"][0]
        are_apart = not before["delta"].keys() & after["delta"].keys()
        # Of one without text the tokens are the next text's, and would be taken for the last one's.
        if before["delta"] and after["delta"] and are_apart and draw(st.booleans()):
            logprobs = [*_content(before), *_content(after)]
            last = chunk(before["delta"] | after["delta"], logprobs={"content": logprobs})
            continue
        yield last
        if draw(st.booleans()):
            yield chunk({})
        last = each
    yield last


def _content(choice: Json) -> list[Json]:
    content: list[Json] = (choice.get("logprobs") or {}).get("content", [])
    return content


@given(splits())
def test_any_split_of_an_answer_is_the_same_response(split: tuple[Json, list[Json]]) -> None:
    answer, chunks = split
    events = streamed(chunks)
    response = last_response(events)
    assert response == answered(answer, stream=True)
    done = [event.item for event in events if event.type == "response.output_item.done"]
    by_id = {item.id: item for item in done if item.id is not None}
    assert [by_id[item.id] for item in response.output if item.id is not None] == response.output
    told = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert told == response.output_text
