import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.streams.ingest.lines import assistant, user

from headrace.streams.ingest.conversations import (
    Conversation,
    Conversations,
    Message,
    answer_digests,
    comparable,
    prefix_digests,
)


class Named(Conversation):
    def __init__(self, name: str) -> None:
        self.name = name


def take(
    conversations: Conversations[Named], name: str, messages: list[Message], *answers: Message
) -> tuple[str, list[str]]:
    """The name of the conversation that the exchange went to, and those that it ended."""
    prefixes = prefix_digests(messages)
    found = conversations.find(prefixes) or Named(name)
    over = conversations.add(found, name, answer_digests(prefixes[-1], answers))
    return found.name, [conversation.name for conversation in over]


def call(arguments: str, **more: Any) -> dict[str, Any]:
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}]
    return {"role": "assistant", "tool_calls": calls, **more}


@pytest.mark.parametrize(
    ("answer", "sent_back", "same"),
    [
        pytest.param(assistant("b"), assistant("b"), True, id="alike"),
        pytest.param(assistant("b"), assistant("B"), False, id="other text"),
        pytest.param(assistant("b"), assistant("b "), False, id="a space more"),
        pytest.param(assistant("b"), user("b"), False, id="other role"),
        pytest.param({"content": "b"}, assistant("b"), True, id="an answer without a role"),
        pytest.param({"content": "b", "role": "assistant", "refusal": None}, assistant("b"), True, id="null"),
        pytest.param(assistant("b") | {"annotations": [1]}, assistant("b"), True, id="annotations"),
        pytest.param(assistant("b") | {"reasoning_content": "hm"}, assistant("b"), True, id="reasoning"),
        pytest.param(
            assistant("b"),
            {"role": "assistant", "content": [{"type": "text", "text": "b"}]},
            True,
            id="a part",
        ),
        pytest.param(call('{"a":1}', content=None), call('{"a": 1}'), True, id="spaces in arguments"),
        pytest.param(call('{"a":1}', content=""), call('{"a":1}'), True, id="empty content"),
        pytest.param(call('{"a":1}'), call('{"a":2}'), False, id="other arguments"),
        pytest.param(call("{a"), call("{a"), True, id="arguments that are no JSON"),
        pytest.param(call('"{"'), call("{"), False, id="a JSON string is not its text"),
        pytest.param(call("1", name="x"), call("1"), False, id="other name"),
    ],
)
def test_an_answer_sent_back_makes_the_next_turn(answer: Message, sent_back: Message, same: bool) -> None:  # noqa: FBT001
    conversations: Conversations[Named] = Conversations()
    take(conversations, "first", [user("a")], answer)
    name, _ = take(conversations, "second", [user("a"), sent_back, user("c")], assistant("d"))
    assert name == ("first" if same else "second")


A, B, C = user("a"), assistant("b"), user("c")


@pytest.mark.parametrize(
    ("exchanges", "expected"),
    [
        pytest.param([([A], B), ([A], B)], "01", id="the same again is another conversation"),
        pytest.param([([A], B), ([A, B], C)], "00", id="nothing but the answer behind"),
        pytest.param([([A], B), ([A, C], B)], "01", id="the answer is not there"),
        pytest.param([([A], B), ([user("x"), A, B, C], B)], "01", id="not from the beginning"),
        pytest.param([([A], B), ([A, B, C], B), ([A, B, C, B, A], B)], "000", id="three turns"),
        pytest.param([([A], B), ([A, B, C], B), ([A, B, A], B)], "000", id="a branch"),
        pytest.param(
            [([A], B), ([A, B, C], B), ([A], B), ([A, B, C], B)], "0022", id="one sample after the other"
        ),
        pytest.param([([A], B), ([A], B), ([A, B, C], B), ([A, B, C], B)], "0110", id="two samples at once"),
    ],
)
def test_where_exchanges_go(exchanges: list[tuple[list[Message], Message]], expected: str) -> None:
    conversations: Conversations[Named] = Conversations()
    found = [
        take(conversations, str(number), messages, answer)[0]
        for number, (messages, answer) in enumerate(exchanges)
    ]
    assert "".join(found) == expected


def test_any_choice_can_be_the_one_that_is_continued() -> None:
    conversations: Conversations[Named] = Conversations()
    take(conversations, "first", [A], assistant("x"), B)
    assert take(conversations, "second", [A, B, C], B)[0] == "first"


@given(st.lists(st.sampled_from([A, C, user("d")]), min_size=1, max_size=60), st.integers(1, 5))
def test_each_conversation_ends_once_and_memory_is_bounded_c5(asked: list[Message], window: int) -> None:
    conversations: Conversations[Named] = Conversations(window)
    began, over = set(), []
    history: list[Message] = []
    for number, message in enumerate(asked):
        history = [*history, message]
        name, ended = take(conversations, str(number), history, B)
        began.add(name)
        over += ended
        history = [*history, B] if number % 3 else []
        assert len(conversations._turns) <= window
        assert sum(len(m.fresh) for m in conversations._matches.values()) <= window
        assert len(conversations._identities) <= window
    over += [conversation.name for conversation in conversations.close()]
    assert sorted(over) == sorted(began)
    assert not conversations._matches


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=9), json_values, max_size=5))
def test_any_message_can_be_compared(message: dict[str, Any]) -> None:
    assert comparable(message) == comparable(json.loads(json.dumps(message)))
    assert prefix_digests([message]) == prefix_digests([dict(reversed(message.items()))])
