import pytest

from headrace.proxy.dialect import Json
from headrace.proxy.problem import RefusedError
from headrace.proxy.responses.transcript import Transcript

CALL: Json = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'}
OTHER_CALL: Json = CALL | {"call_id": "c2"}
REASONING: Json = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "hm"}],
}


def said(*texts: str) -> Json:
    parts = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    return {"type": "message", "role": "assistant", "content": parts, "status": "completed", "id": "msg_1"}


def result(call_id: str = "c1", output: object = "42") -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def chat_call(call_id: str = "c1", arguments: str = '{"a": 1}') -> Json:
    return {"id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments}}


def messages_of(*items: Json) -> list[Json]:
    transcript = Transcript(None)
    for index, item in enumerate(items):
        transcript.add(item, f"input[{index}]")
    return transcript.messages


def test_instructions_come_first() -> None:
    assert Transcript("be brief").messages == [{"role": "system", "content": "be brief"}]


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        pytest.param(
            {"role": "user", "content": "hi"}, {"role": "user", "content": "hi"}, id="an easy message"
        ),
        pytest.param(
            {"type": "message", "role": "developer", "content": "hi"},
            {"role": "system", "content": "hi"},
            id="developer",
        ),
        pytest.param(
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"role": "user", "content": "hi"},
            id="one text",
        ),
        pytest.param(
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "what is it?"},
                    {"type": "input_image", "image_url": "data:x", "detail": "low"},
                    {"type": "input_image", "image_url": "data:y", "file_id": None, "detail": None},
                    {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "what is it?"},
                    {"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}},
                    {"type": "image_url", "image_url": {"url": "data:y"}},
                    {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
                ],
            },
            id="parts",
        ),
        pytest.param(
            {"role": "assistant", "content": "yes"}, {"role": "assistant", "content": "yes"}, id="easy answer"
        ),
        pytest.param(said("a", "b"), {"role": "assistant", "content": "ab"}, id="an answer's parts"),
        pytest.param(
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"role": "assistant", "content": "", "refusal": "no"},
            id="refusal",
        ),
        pytest.param(CALL, {"role": "assistant", "tool_calls": [chat_call()]}, id="call"),
        pytest.param(result(), {"role": "tool", "tool_call_id": "c1", "content": "42"}, id="result"),
        pytest.param(
            result(output=[{"type": "input_text", "text": "42"}]),
            {"role": "tool", "tool_call_id": "c1", "content": "42"},
            id="result in a part",
        ),
        pytest.param(
            result(output=[{"type": "input_text", "text": "4"}, {"type": "input_text", "text": "2"}]),
            {
                "role": "tool",
                "tool_call_id": "c1",
                "content": [{"type": "text", "text": "4"}, {"type": "text", "text": "2"}],
            },
            id="result in parts",
        ),
        pytest.param(
            {"type": "custom_tool_call", "call_id": "c1", "name": "f", "input": 'a "b"'},
            {"role": "assistant", "tool_calls": [chat_call(arguments='{"input":"a \\"b\\""}')]},
            id="custom call",
        ),
        pytest.param(
            {"type": "custom_tool_call_output", "call_id": "c1", "output": "x"},
            {"role": "tool", "tool_call_id": "c1", "content": "x"},
            id="custom result",
        ),
        pytest.param(REASONING, {"role": "assistant", "reasoning_content": "hm"}, id="reasoning"),
        pytest.param(
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"role": "assistant", "reasoning_content": "hm"},
            id="a summary only",
        ),
    ],
)
def test_an_item_as_a_message(item: Json, expected: Json) -> None:
    assert messages_of(item) == [expected]


@pytest.mark.parametrize(
    ("items", "roles"),
    [
        pytest.param([REASONING, said("a"), CALL, OTHER_CALL], ["assistant"], id="one answer"),
        pytest.param([CALL, said("a")], ["assistant"], id="text after a call"),
        pytest.param(
            [CALL, OTHER_CALL, result(), result("c2")], ["assistant", "tool", "tool"], id="calls at once"
        ),
        pytest.param(
            [CALL, result(), OTHER_CALL, result("c2")],
            ["assistant", "tool", "assistant", "tool"],
            id="calls in turn",
        ),
        pytest.param([said("a"), said("b")], ["assistant", "assistant"], id="two answers"),
        pytest.param(
            [said("a"), REASONING, said("b")], ["assistant", "assistant"], id="reasoning begins one"
        ),
        pytest.param([REASONING, REASONING, said("b")], ["assistant"], id="reasoning in two"),
        pytest.param([{"type": "reasoning", "id": "rs_1", "summary": []}], [], id="reasoning without text"),
    ],
)
def test_what_the_model_said_at_once_is_one_message(items: list[Json], roles: list[str]) -> None:
    assert [message["role"] for message in messages_of(*items)] == roles


def test_an_answer_of_all_kinds() -> None:
    assert messages_of(REASONING, said("a"), CALL, OTHER_CALL) == [
        {
            "role": "assistant",
            "reasoning_content": "hm",
            "content": "a",
            "tool_calls": [chat_call(), chat_call("c2")],
        }
    ]


@pytest.mark.parametrize(
    ("item", "param"),
    [
        pytest.param({"type": "web_search_call", "id": "ws_1"}, "input[0].type", id="hosted"),
        pytest.param(
            {"type": "reasoning", "summary": ["x"]}, "input[0].summary[0].text", id="a summary of words"
        ),
        pytest.param({"type": "reasoning", "content": [None]}, "input[0].content[0].text", id="no reasoning"),
        pytest.param({}, "input[0]", id="empty"),
        pytest.param({"role": "critic", "content": ""}, "input[0].role", id="role"),
        pytest.param({"role": ["user"], "content": ""}, "input[0].role", id="roles"),
        pytest.param({"role": "user"}, "input[0].content", id="no content"),
        pytest.param({"role": "assistant", "content": 1}, "input[0].content", id="no answer"),
        pytest.param({"role": "user", "content": ["x"]}, "input[0].content[0]", id="no part"),
        pytest.param(
            {"role": "user", "content": [{"type": "input_file", "file_id": "f"}]},
            "input[0].content[0].type",
            id="file",
        ),
        pytest.param(
            {"role": "user", "content": [{"type": "input_image", "file_id": "f"}]},
            "input[0].content[0]",
            id="uploaded image",
        ),
        pytest.param(
            {"role": "user", "content": [{"type": "input_text", "text": None}]},
            "input[0].content[0].text",
            id="no text",
        ),
        pytest.param(
            {"role": "assistant", "content": [{"type": "input_image", "image_url": "x"}]},
            "input[0].content[0].type",
            id="an answer's image",
        ),
        pytest.param(CALL | {"arguments": {}}, "input[0].arguments", id="arguments"),
        pytest.param({"type": "function_call_output", "output": ""}, "input[0].call_id", id="no call id"),
        pytest.param(result(output=None), "input[0].output", id="no output"),
        pytest.param(
            {"type": "reasoning", "summary": [], "encrypted_content": "x"},
            "input[0].encrypted_content",
            id="encrypted",
        ),
    ],
)
def test_items_that_a_chat_has_no_words_for(item: Json, param: str) -> None:
    with pytest.raises(RefusedError) as refused:
        messages_of(item)
    assert (refused.value.problem.status, refused.value.problem.param) == (400, param)
