from typing import Any

import pytest

from headrace.proxy.anthropic.conversation import read_conversation
from headrace.proxy.dialect import Json
from headrace.proxy.problem import RefusedError

PNG: Json = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "aGk="},
    "cache_control": {"type": "ephemeral"},
}
PNG_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
USE: Json = {"type": "tool_use", "id": "t1", "name": "look", "input": {"where": "é"}}
CALL = {"id": "t1", "type": "function", "function": {"name": "look", "arguments": '{"where":"é"}'}}


def text(value: str) -> Json:
    return {"type": "text", "text": value}


def result(content: Any = None, of: str = "t1", **more: Any) -> Json:
    return {
        "type": "tool_result",
        "tool_use_id": of,
        **({} if content is None else {"content": content}),
        **more,
    }


def tool(content: str, of: str = "t1") -> Json:
    return {"role": "tool", "tool_call_id": of, "content": content}


def user(content: Any) -> Json:
    return {"role": "user", "content": content}


def assistant(content: str | None, **more: Any) -> Json:
    return {"role": "assistant", "content": content, **more}


def read(*messages: Json, **more: Any) -> list[Json]:
    return read_conversation({"messages": list(messages), **more})


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param("hi", [user("hi")], id="text"),
        pytest.param([text("hi")], [user("hi")], id="one text block"),
        pytest.param(
            [text("a"), text(""), text("b")], [user([text("a"), text("b")])], id="texts, an empty one"
        ),
        pytest.param([], [user("")], id="nothing"),
        pytest.param([text("see"), PNG], [user([text("see"), PNG_PART])], id="image as base64"),
        pytest.param(
            [{"type": "image", "source": {"type": "url", "url": "https://h/a.png"}}],
            [user([{"type": "image_url", "image_url": {"url": "https://h/a.png"}}])],
            id="image by url",
        ),
        pytest.param([result("4")], [tool("4")], id="tool result as text"),
        pytest.param([result()], [tool("")], id="tool result of nothing"),
        pytest.param([result([text("a"), text("b")])], [tool("a\nb")], id="tool result of blocks"),
        pytest.param(
            [result("4", "t2"), result("5"), text("go on")],
            [tool("4", "t2"), tool("5"), user("go on")],
            id="several results, then words",
        ),
        pytest.param(
            [text("so"), result("4"), text("go on")],
            [user("so"), tool("4"), user("go on")],
            id="order kept",
        ),
        pytest.param(
            [result([text("seen"), PNG]), result("5", "t2"), text("go on")],
            [tool("seen"), tool("5", "t2"), user([PNG_PART, text("go on")])],
            id="image in a result comes with what is said next",
        ),
        pytest.param([result([PNG])], [tool(""), user([PNG_PART])], id="image in a result, and no words"),
        pytest.param([result("no such file", is_error=True)], [tool("Error: no such file")], id="error"),
        pytest.param([result("ERROR 5", is_error=True)], [tool("ERROR 5")], id="error that says so"),
        pytest.param([result(is_error=True)], [tool("Error")], id="error without words"),
        pytest.param([result("fine", is_error=False)], [tool("fine")], id="no error"),
    ],
)
def test_what_a_user_says(content: Any, expected: list[Json]) -> None:
    assert read(user(content)) == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param("hi", assistant("hi"), id="text"),
        pytest.param([], assistant(""), id="nothing"),
        pytest.param([text("a "), text("b")], assistant("a b"), id="one text again"),
        pytest.param([text("I look"), USE], assistant("I look", tool_calls=[CALL]), id="text and a call"),
        pytest.param([USE], assistant(None, tool_calls=[CALL]), id="a call alone"),
        pytest.param(
            [USE, text("and"), USE | {"id": "t2"}],
            assistant("and", tool_calls=[CALL, CALL | {"id": "t2"}]),
            id="two calls",
        ),
        pytest.param(
            [{"type": "thinking", "thinking": "hm", "signature": "s"}, text("a")],
            assistant("a", reasoning="hm"),
            id="thinking apart",
        ),
        pytest.param(
            [{"type": "redacted_thinking", "data": "x"}, text("a")], assistant("a"), id="sealed thinking"
        ),
    ],
)
def test_what_an_assistant_said(content: Any, expected: Json) -> None:
    assert read(user("q"), {"role": "assistant", "content": content}) == [user("q"), expected]


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        pytest.param(None, [], id="none"),
        pytest.param("", [], id="empty"),
        pytest.param("be brief", ["be brief"], id="text"),
        pytest.param(
            [text("be brief") | {"cache_control": {"type": "ephemeral"}}, text("be kind")],
            ["be brief\nbe kind"],
            id="blocks",
        ),
        pytest.param(
            [text("x-anthropic-billing-header: v=1; cch=5f2a"), text("be brief")],
            ["be brief"],
            id="without what differs from call to call",
        ),
        pytest.param("x-anthropic-billing-header: v=1\nbe brief", ["be brief"], id="nor its line"),
    ],
)
def test_system(system: Any, expected: list[str]) -> None:
    said = [{"role": "system", "content": content} for content in expected]
    assert read(user("q"), system=system) == [*said, user("q")]


def test_system_messages_stay_where_they_stand() -> None:
    reminder = {"role": "system", "content": [text("mind the time")]}
    assert read(user("q"), reminder, user("r")) == [
        user("q"),
        {"role": "system", "content": "mind the time"},
        user("r"),
    ]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        pytest.param({}, "messages", id="no messages"),
        pytest.param({"messages": []}, "messages", id="empty messages"),
        pytest.param({"messages": ["hi"]}, "messages.0", id="message no object"),
        pytest.param({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role", id="role"),
        pytest.param({"messages": [user(None)]}, "messages.0.content", id="content"),
        pytest.param({"messages": [user(["x"])]}, "messages.0.content.0", id="block no object"),
        pytest.param({"messages": [user([{"type": "text"}])]}, "messages.0.content.0.text", id="no text"),
        pytest.param(
            {"messages": [user("q"), user([text("a"), {"type": "document", "source": {}}])]},
            "messages.1.content.1",
            id="document",
        ),
        pytest.param(
            {"messages": [user([result([{"type": "document", "source": {}}])])]},
            "messages.0.content.0.content.0",
            id="document in a result",
        ),
        pytest.param({"messages": [user([{"type": "image"}])]}, "messages.0.content.0.source", id="image"),
        pytest.param(
            {"messages": [user([{"type": "image", "source": {"type": "file", "file_id": "f"}}])]},
            "messages.0.content.0.source",
            id="image of a store",
        ),
        pytest.param(
            {"messages": [user([{"type": "image", "source": {"type": "url"}}])]},
            "messages.0.content.0.source.url",
            id="image without url",
        ),
        pytest.param(
            {"messages": [user([{"type": "tool_result"}])]},
            "messages.0.content.0.tool_use_id",
            id="result of none",
        ),
        pytest.param({"messages": [user([USE])]}, "messages.0.content.0", id="user's tool_use"),
        pytest.param(
            {"messages": [assistant(None) | {"content": [{"type": "server_tool_use", "id": "s"}]}]},
            "messages.0.content.0",
            id="server tool",
        ),
        pytest.param(
            {"messages": [assistant(None) | {"content": [USE | {"input": "x"}]}]},
            "messages.0.content.0.input",
            id="input no object",
        ),
        pytest.param({"messages": [user("q")], "system": [PNG]}, "system.0", id="image in system"),
        pytest.param({"messages": [user("q")], "system": 3}, "system", id="system"),
    ],
)
def test_what_can_not_be_said_is_refused_by_its_place(body: Json, param: str) -> None:
    with pytest.raises(RefusedError) as refused:
        read_conversation(body)
    assert (refused.value.problem.status, refused.value.problem.param) == (400, param)
